"""What this process holds of each of an optimizer's parameters, by name, and who holds the same.

Found by one look at all live modules when an optimizer first steps: that needs no hook into any
wrapper, works for every way of wrapping, and costs the program some milliseconds once.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch
from torch import nn

from . import layouts


class Census:
    """What is known of the parameters of all optimizers that stepped."""

    def __init__(self) -> None:
        self.parts: dict[tuple[str, tuple[int, ...]], layouts.Part] = {}
        self.complete = True
        self._holdings: dict[int, layouts.Holding] = {}
        # Parameters are known by identity: they must live on, or another could get the same. They
        # are held to the end also because that is when their last values are read.
        self._known: dict[int, torch.Tensor] = {}

    def look(self, parameters: Iterable[torch.Tensor], rank: int, processes: int) -> None:
        """Find the owners of those parameters that were not looked for before."""
        new = {id(p): p for p in parameters if id(p) not in self._known}
        if not new:
            return
        self._known.update(new)
        for root in _roots():
            for path, module in root.named_modules():
                self._look_at(layouts.clean(path), module, new, rank, processes)
        for identity, parameter in new.items():
            if identity not in self._holdings:
                # It has no module, hence no name: its gradient counts, its last value cannot be
                # compared.
                holding = layouts.single("", parameter, processes, rank)
                self._add([identity], layouts.Holding(holding.replicas, readable=False))

    def replicas(self, parameter: torch.Tensor) -> int:
        """How many processes hold the same part of this parameter and its gradient."""
        return self._holdings[id(parameter)].replicas

    def _look_at(
        self,
        name: str,
        module: nn.Module,
        new: dict[int, torch.Tensor],
        rank: int,
        processes: int,
    ) -> None:
        members = [id(p) for p in layouts.flat_members(module)]
        if not new.keys().isdisjoint(members):
            holding = layouts.flat_unit(name, module, lambda parameter: id(parameter) in new)
            self._add([m for m in members if m not in self._holdings], holding)
        for key, parameter in module._parameters.items():
            if id(parameter) in new and id(parameter) not in self._holdings:
                assert parameter is not None
                path = layouts.clean(name, key)
                self._add([id(parameter)], layouts.single(path, parameter, processes, rank))

    def _add(self, identities: list[int], holding: layouts.Holding) -> None:
        self._holdings.update(dict.fromkeys(identities, holding))
        self.complete = self.complete and holding.readable
        for part in holding.parts:
            self.parts.setdefault((part.name, part.offsets), part)


def _roots() -> list[nn.Module]:
    """The live modules that no other module contains, those with most parameters first."""
    modules = [
        o
        for o in gc.get_objects()
        if issubclass(type(o), nn.Module) and "_modules" in o.__dict__  # else not initialised yet
    ]
    children = {id(child) for module in modules for child in module._modules.values()}
    roots = [module for module in modules if id(module) not in children]
    return sorted(roots, key=lambda m: (-sum(1 for _ in m.parameters()), type(m).__qualname__))
