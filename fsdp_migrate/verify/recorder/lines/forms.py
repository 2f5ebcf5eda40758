"""The short form of a value: what two runs of a program must agree in, as far as a line of text can say it.

What must differ between FSDP1 and FSDP2 is marked, so that the comparison knows it: `~` begins the form of a parameter
and of whatever is sharded, `FSDP(Block)` is FSDP1's wrapper of a Block. A list of parameters is written by their names,
whatever tensors they are in.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..imports import Copies

if TYPE_CHECKING:
    from .tensors import Tensors

# What `id` gives differs from run to run.
_ADDRESS = 1 << 40
_WIDTH = 160
_ITEMS = 12
_DEPTH = 3
_FIELDS = 24
"""At most of a string, of the elements of a collection, of collections in each other, of an object's fields."""

_FOLLOWED = ("torch.optim.", "torch.utils.data.")
"""Of whose objects the fields are followed, too: schedulers, loaders and samplers."""

_OF_SHARDING = ("torch.distributed.", "fsdp_migrate.runtime.")
"""Whose objects are policies, meshes and the like: FSDP2 has others, also where FSDP1 took None."""

_SKIPPED = (
    types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type,
    functools.partial, types.GenericAlias, types.CellType,
)  # fmt: skip
"""What a program defines, and no run changes."""


class Forms:
    """Forms of values; those of tensors, modules and optimizers once the program has imported torch."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._own_types: dict[type, bool] = {}
        self._tensors: Tensors | None = None

    def named(self, name: str, value: Any, holders: dict[int, str]) -> list[tuple[str, str]]:
        """A variable's form, and those of its parts that are followed by themselves, with their paths: `self.rate`.

        `holders` are the frame's variables and attributes before this one that have a module, by its identity.
        """
        form = self.of(value)
        if form is None:
            return []
        found = [(name, form)]
        # An object may be only half built, and has no parts then.
        with contextlib.suppress(Exception):
            found += self._parts(name, value, holders)
        return found

    def seed(self) -> str:
        """The seed of torch's random numbers; empty before the program has imported torch."""
        torch = sys.modules.get("torch")
        if self._with_torch() is None or torch is None:
            return ""
        return str(torch.initial_seed())

    def begin(self) -> None:
        """Training begins."""
        if self._tensors is not None:
            self._tensors.begin()

    def _parts(self, name: str, value: Any, holders: dict[int, str]) -> Iterator[tuple[str, str]]:
        tensors = self._with_torch()
        if tensors is not None:
            if name != "self" or not tensors.is_module(value):
                for part, text in tensors.parts(value, name, holders):
                    yield (f"{name}.{part}", text)
            if tensors.is_module(value):
                yield from self._fields(name, tensors.fields(value), holders)
                return
            if tensors.is_optimizer(value):
                return
        if self._is_own(type(value)) or type(value).__module__.startswith(_FOLLOWED):
            yield from self._fields(name, getattr(value, "__dict__", {}), holders)

    def of(self, value: Any, depth: int = 0) -> str | None:
        """The form of a value; None for what is not followed, such as functions."""
        try:
            return self._of(value, depth)
        except Exception as error:  # a value's own code may raise: it must not end the program
            return f"unreadable ({type(error).__name__})"

    def _of(self, value: Any, depth: int) -> str | None:
        if isinstance(value, _SKIPPED):
            return None
        form = self._simple(value)
        tensors = self._with_torch()
        if form is None and tensors is not None:
            form = tensors.of(value)
        if form is not None:
            return form
        if depth >= _DEPTH:
            return "…"
        if isinstance(value, (list, tuple, set, frozenset)):
            return self._collection(value, depth)
        if isinstance(value, dict):
            return self._mapping(value, depth)
        return self._other(value)

    def _simple(self, value: Any) -> str | None:
        """The form of a number, a string or a constant; None for anything else."""
        if isinstance(value, enum.Enum):
            form = f"{type(value).__name__}.{value.name}"
            if type(value).__module__.startswith(_OF_SHARDING):
                return f"~{form} ()"
            return form
        if isinstance(value, float):
            return f"{value:.6g}"
        if isinstance(value, int) and value > _ADDRESS:
            return "an address"
        if value is None or isinstance(value, (int, complex)):
            return repr(value)
        if isinstance(value, str):
            return repr(self._copies.hidden(value[: 4 * _WIDTH])[:_WIDTH])
        return None

    def _collection(self, value: Any, depth: int) -> str:
        kind = type(value).__name__
        tensors = self._with_torch()
        if tensors is not None and tensors.all_parameters(value):
            return f"{kind} of {tensors.names(value)}"
        items = [self.of(item, depth + 1) or "…" for item in [*value][:_ITEMS]]
        if isinstance(value, (set, frozenset)):
            items.sort()
        more = ""
        if len(value) > _ITEMS:
            more = ", …"
        return f"{kind} of {len(value)} ({', '.join(items)}{more})"

    def _mapping(self, value: dict[Any, Any], depth: int) -> str:
        tensors = self._with_torch()
        items = []
        for key, item in _first_items(value):
            form = self.of(item, depth + 1)
            if key == "params" and isinstance(item, (list, tuple)):
                # A group of an optimizer, or of its saved state, in which parameters have names.
                if tensors is not None and tensors.all_parameters(item):
                    form = tensors.names(item)
                elif all(isinstance(name, str) for name in item):
                    form = self.of(sorted(item), depth + 1)
            if form is not None:
                items.append(f"{self.of(key, depth + 1)}: {form}")
        if tensors is None or not tensors.any_tensor(value):
            items.sort()  # a reader looks things up
        more = ""
        if len(value) > _ITEMS:
            more = ", …"
        return f"dict of {len(value)} ({', '.join(items)}{more})"

    def _other(self, value: Any) -> str:
        kind = type(value)
        module = kind.__module__.partition(".")[0]
        if module == "numpy" and getattr(value, "size", 0) == 1:
            return f"{value.item():.6g}"
        if module == "numpy" and hasattr(value, "shape"):
            return f"array {value.dtype} {tuple(value.shape)}"
        if f"{kind.__module__}.".startswith(_OF_SHARDING):
            return "~setting ()"
        if module == "torch":
            return "object"
        return f"object {kind.__name__}"

    def _fields(
        self, name: str, fields: dict[str, Any], holders: dict[int, str]
    ) -> Iterator[tuple[str, str]]:
        tensors = self._with_torch()
        for field, held in [*fields.items()][:_FIELDS]:
            if field.startswith("_"):
                continue
            form = self.of(held, 1)
            if form is not None and not form.startswith(("object", "module")):
                yield f"{name}.{field}", form
            if tensors is not None:
                for part, text in tensors.parts(held, f"{name}.{field}", holders):
                    yield (f"{name}.{field}.{part}", text)

    def _is_own(self, kind: type) -> bool:
        """Whether a class is the program's."""
        if kind not in self._own_types:
            module = sys.modules.get(kind.__module__)
            file = getattr(module, "__file__", None) or ""
            self._own_types[kind] = bool(file) and bool(self._copies.inside(file))
        return self._own_types[kind]

    def _with_torch(self) -> Tensors | None:
        if self._tensors is None and hasattr(sys.modules.get("torch"), "_C"):
            # Its modules import torch, so that it is known only once the program has done so.
            from .tensors import Tensors

            self._tensors = Tensors(self._is_own)
        return self._tensors


def _first_items(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The items that are written of a dictionary. With texts as keys they do not depend on its order."""
    if len(value) > _ITEMS and all(isinstance(key, str) for key in value):
        return [(key, value[key]) for key in sorted(value)[:_ITEMS]]
    return [*value.items()][:_ITEMS]
