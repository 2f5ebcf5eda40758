"""What the runtime knows of a module beside FSDP2's own state: one object for each, held by weak reference.

Everything else asks here, so that there is one place to print and to forget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, WeakKeyDictionary

import torch
from torch import nn

if TYPE_CHECKING:
    from .api import StateDictSettings
    from .quirks import Record


QUIRKS = frozenset(
    """autocast_cache class_names data_writes interface list_inputs older_optimizers parameter_attributes root_inputs
    sharded_after_forward whole_in_apply whole_state_dicts zero_gradients""".split()  # noqa: SIM905
)
"""What FSDP1 did besides, by the names of ``like_fsdp1``'s switches."""


@dataclass(eq=False, repr=False)
class Notes:
    """Of a unit, of a module in one, or of the module that ``model.module`` is.

    Attributes:
        arguments: what FSDP1's constructor was called with, as the wrapper's attributes; None where the program sharded
            the unit with FSDP2's own arguments. The bridge's wrapper has them itself.
        buffer_dtype: FSDP1's ``buffer_dtype`` of a unit of FSDP2's own arguments, which have none.
        quirks: what FSDP1 did besides, and the unit does: all of it, unless ``like_fsdp1`` switches some off.
        record: of the ``with like_fsdp1(model)`` that the unit was sharded in; None for the bridge's units.
        outermost: the unit around that is in no other one, or the unit itself; of those with a record.
        was_hooked: whether the program had hooks on it before it was sharded.
        is_exempt: whether it runs in full precision, whatever is around it.
        has_gradients: whether it had gradients at the end of a forward after which it stays gathered.
        shows_unreduced: whether gradients are in ``p.grad`` before they are reduced.
        follows_types: whether its state dicts are of the type in ``settings``.
        settings: the type of state dicts that is set, and its configurations; None: as FSDP2 has it.
        view: the module that ``model.module`` is.
        unit: the unit that a view shows.
        is_prepared: whether what FSDP1 does at the first use of a root is done.
        is_running: whether it is in its forward.
        is_summoned: whether it is inside ``summon_full_params``; with ``rank0_only`` other ranks have their shards there.
        order: an ``Order`` in which units run, which the units of a root share; None unless FSDP1 would check it.
        end_first_forward: what is called at the end of a root's first forward.
        first_forward: a ``FirstForward`` since the last backward; None unless parameters are cast for it.
    """

    arguments: Mapping[str, Any] | None = None
    buffer_dtype: torch.dtype | None = None
    quirks: frozenset[str] = QUIRKS
    record: Record | None = None
    outermost: ReferenceType[nn.Module] | None = None
    was_hooked: bool = False
    is_exempt: bool = False
    has_gradients: bool = False
    shows_unreduced: bool = False
    follows_types: bool = False
    settings: StateDictSettings | None = None
    view: ReferenceType[nn.Module] | None = None
    unit: nn.Module | None = None
    is_prepared: bool = False
    is_running: bool = False
    is_summoned: bool = False
    order: Any = None
    end_first_forward: Callable[[], None] | None = None
    first_forward: Any = None

    def is_outermost(self, unit: nn.Module) -> bool:
        """Whether these, of ``unit``, are those of a unit that is in no other one of its record."""
        return self.outermost is not None and self.outermost() is unit

    def acted(self, quirk: str, *examples: str) -> None:
        """Counts that ``quirk`` acted on each of ``examples``."""
        if self.record is not None:
            self.record.add(quirk, *examples)

    def __repr__(self) -> str:
        """What is noted, and nothing of what is not."""
        noted = [(each.name, getattr(self, each.name), each.default) for each in fields(self)]
        shown = [f"{name}={value!r}" for name, value, default in noted if value is not default]
        return f"Notes({', '.join(shown)})"


_NOTES: WeakKeyDictionary[nn.Module, Notes] = WeakKeyDictionary()


def notes_of(module: nn.Module) -> Notes:
    """What is known of ``module``: nothing yet, or what was noted before."""
    notes = _NOTES.get(module)
    if notes is None:
        notes = _NOTES[module] = Notes()
    return notes
