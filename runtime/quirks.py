"""What ``like_fsdp1`` kept as FSDP1 had it, by name: what is switched off, and how often each acted.

Of the bridge's units nothing is counted, and nothing is switched off.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import nn

_EXAMPLES = 20


@dataclass(eq=False)
class Record:
    """One ``with like_fsdp1(model)``."""

    place: str
    switched_off: frozenset[str]
    acted: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, quirk: str, *examples: str) -> None:
        """Counts that ``quirk`` acted on each of ``examples``, unless it is switched off."""
        if not examples or quirk in self.switched_off:
            return
        acted = self.acted.setdefault(quirk, {"count": 0, "examples": []})
        acted["count"] += len(examples)
        acted["examples"] = [*dict.fromkeys([*acted["examples"], *examples])][:_EXAMPLES]


RECORDS: list[Record] = []
# By identity, with the place where the parameter must be found: torch moves no parameter that has weak references.
_of_parameters: dict[int, tuple[ReferenceType[nn.Module], str, Record]] = {}


def start(place: str, switched_off: Iterable[str]) -> Record:
    """A new record."""
    RECORDS.append(Record(place, frozenset(switched_off)))
    return RECORDS[-1]


def follow_writes(unit: nn.Module, record: Record) -> None:
    """From now on ``record`` counts writes to the parameters of ``unit``."""
    for module in unit.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                _of_parameters[id(parameter)] = ref(module), name, record


def record_of_parameter(parameter: torch.Tensor) -> Record | None:
    """The record of a sharded parameter of a unit that is sharded in place."""
    known = _of_parameters.get(id(parameter))
    if known is None:
        return None
    module, name, record = known
    owner = module()
    if owner is not None and owner._parameters.get(name) is parameter:
        return record
    return None


def records() -> list[dict[str, Any]]:
    """What each ``with like_fsdp1(model)`` of this process did, as plain data.

    Of ``class_names`` only printing is seen, not a comparison of names.

    ``{"place": "train.py:31", "switched_off": [...], "acted": {"zero_gradients": {"count": 3, "examples": [...]}}}``
    """
    return [
        {
            "place": each.place,
            "switched_off": sorted(each.switched_off),
            "acted": {name: dict(done) for name, done in sorted(each.acted.items())},
        }
        for each in RECORDS
    ]
