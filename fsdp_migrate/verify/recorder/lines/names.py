"""The names of parameters, whether they are flat, parts of a flat one, sharded each by itself, or whole."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .. import layouts
from ..census import roots

_LOOKS = 60
"""At most so many searches among all live objects: each takes some milliseconds."""


@dataclass(frozen=True)
class _Place:
    """A parameter, its names (several for a flat one), and whether it still is where it was found."""

    parameter: weakref.ref[torch.Tensor]
    names: tuple[str, ...]
    holds: Callable[[], bool]


class Names:
    """Names that were found, by a parameter's identity; a parameter that is not known yet is searched for."""

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}
        self._lost: dict[int, weakref.ref[torch.Tensor]] = {}
        self._looks = _LOOKS

    def of(self, parameters: list[torch.Tensor], current: bool) -> tuple[list[str], int]:
        """The sorted names, and how many parameters have none; with `current`, only of those that a module has now."""
        found, lost = self._find(parameters, current)
        if any(not self._is_lost(parameter) for parameter in lost) and self._looks > 0:
            self._looks -= 1
            self._look()
            found, lost = self._find(parameters, current)
            self._lost.update({id(parameter): weakref.ref(parameter) for parameter in lost})
        return sorted(found), len(lost)

    def _find(
        self, parameters: list[torch.Tensor], current: bool
    ) -> tuple[set[str], list[torch.Tensor]]:
        found: set[str] = set()
        lost = []
        for parameter in parameters:
            place = self._places.get(id(parameter))
            if place is not None and place.parameter() is parameter:
                if place.holds() or not current:
                    found.update(place.names)
                    continue
            lost.append(parameter)
        return found, lost

    def _is_lost(self, parameter: torch.Tensor) -> bool:
        known = self._lost.get(id(parameter))
        return known is not None and known() is parameter

    def _look(self) -> None:
        for root in roots():
            paths = {module: path for path, module in root.named_modules()}
            for module, path in paths.items():
                for key, parameter in module._parameters.items():
                    if parameter is not None:
                        self._add(parameter, (layouts.clean(path, key),), _held(module, key))
                self._add_flat(path, module)
                for group in layouts.fsdp2_groups(module):
                    self._add_group(group, paths)

    def _add_group(self, group: Any, paths: dict[nn.Module, str]) -> None:
        """FSDP2 takes its sharded parameters out of their modules while they are gathered."""
        for own in group.fsdp_params:
            place = own._module_info
            name = layouts.clean(paths.get(place.module, ""), place.param_name)
            self._add(own.sharded_param, (name,), _alive(own))

    def _add_flat(self, path: str, module: nn.Module) -> None:
        members = layouts.flat_members(module)
        if not members:
            return
        flat: torch.Tensor = members[0]
        names = tuple(layouts.clean(path, name) for name in flat._fqns)  # type: ignore[attr-defined]
        self._add(flat, names, _alive(module))
        for name, parameter in zip(names, members[1:], strict=False):
            self._add(parameter, (name,), _alive(module))

    def _add(
        self, parameter: torch.Tensor, names: tuple[str, ...], holds: Callable[[], bool]
    ) -> None:
        place = self._places.get(id(parameter))
        known = place is not None and place.parameter() is parameter and place.holds()
        if not known:
            self._places[id(parameter)] = _Place(weakref.ref(parameter), names, holds)


def _held(module: nn.Module, key: str) -> Callable[[], bool]:
    """Whether a module has the parameter that it has now."""
    owner = weakref.ref(module)
    identity = id(module._parameters[key])

    def holds() -> bool:
        held = owner()
        return held is not None and id(held._parameters.get(key)) == identity

    return holds


def _alive(owner: Any) -> Callable[[], bool]:
    """Whether what keeps its parameters is alive: a unit of FSDP1, or FSDP2's record of a parameter."""
    held = weakref.ref(owner)
    return lambda: held() is not None
