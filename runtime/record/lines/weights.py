"""The weights of a sharded model: what this process holds of each, so that all ranks add up to its norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from .. import layouts
from ..ranks import grouped, identity

_NAMES = 400
"""Of a model with more parameters the weights are not followed."""

_SMALL = 2_000_000
"""The weights of a larger model are read only after something was seen to write to them."""


class Weights:
    """Reads the weights of models, again where they may have changed."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[tuple[int, ...], str]] = {}

    def of(self, model: nn.Module) -> str:
        """`a.weight=12.5 b.weight=3.25`: this process's part of the square of each norm; empty if it cannot be told."""
        parameters = [*model.parameters()]
        if not grouped() or not 0 < len(parameters) <= _NAMES:
            return ""
        size = sum(_local(parameter).numel() for parameter in parameters)
        versions = tuple(id(p) + p._version + _local(p)._version for p in parameters)
        known = self._known.get(id(model))
        if known is not None and known[0] == versions and size > _SMALL:
            return known[1]
        with torch.no_grad(), _disable_current_modes():
            squares = _squares(model)
        form = " ".join(f"{name}={square:.7g}" for name, square in squares.items())
        self._known[id(model)] = versions, form
        return form


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def _squares(model: nn.Module) -> dict[str, float]:
    rank, world = identity()
    found: dict[str, float] = {}
    flat: set[int] = set()
    for path, module in model.named_modules():
        members = layouts.flat_members(module)
        if members and any(getattr(members[0], "_param_extensions", ())):
            return {}  # parts of a tensor-parallel model: how they add up is not known here
        if members:
            flat.update(map(id, members))
            _add(found, layouts.flat_unit(layouts.clean(path), module, lambda _: True))
        for group in layouts.fsdp2_groups(module):
            for own in group.fsdp_params:
                flat.add(id(own.sharded_param))
                flat.add(id(getattr(own, "_unsharded_param", None)))
                _add(found, layouts.single(_name(model, own), own.sharded_param, world, rank))
    for name, parameter in model.named_parameters():
        if id(parameter) not in flat:
            _add(found, layouts.single(layouts.clean(name), parameter, world, rank))
    return found


def _name(model: nn.Module, own: Any) -> str:
    place = own._module_info
    path = next(path for path, module in model.named_modules() if module is place.module)
    return layouts.clean(path, place.param_name)


def _add(found: dict[str, float], holding: layouts.Holding) -> None:
    for part in holding.parts:
        value = _local(part.read()).double()
        square = value.square().sum().item() / holding.replicas
        found[part.name] = found.get(part.name, 0.0) + square
