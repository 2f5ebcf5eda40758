"""The weights and gradients of a sharded model, and how far the weights have moved since training began.

Written is what this process holds of each, so that all ranks add up to its norm. A moving average moves by a millionth of
its weights, which their norm does not show.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from .. import layouts
from ..ranks import grouped, identity

_NAMES = 400
"""Of a model with more parameters they are not followed."""

_SMALL = 2_000_000
"""Those of a larger model are read only after something was seen to write to them."""

_KEPT = 20_000_000
"""Elements of first weights that a process keeps at most, of all models."""

UNREDUCED = "unreduced"
"""Gradients that are not the ranks' sum yet: FSDP1 and FSDP2 keep them in other places."""

Squares = dict[str, float]
State = tuple[str, str, str]
"""The forms of weights, of gradients and of moves; empty where they cannot be told."""


class Weights:
    """Reads the weights and gradients of models, again where they may have changed."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[tuple[int, ...], State]] = {}
        self._models: dict[int, weakref.ref[nn.Module]] = {}
        self._first: dict[int, dict[str, torch.Tensor]] = {}

    def begin(self) -> None:
        """Keep the weights of the models that were read: training begins."""
        left = _KEPT
        for model in [held() for held in self._models.values()]:
            if model is None:
                continue
            with torch.no_grad(), _disable_current_modes():
                parts = {part.name: _local(part.read()) for part, *_ in _parts(model)}
                left -= sum(value.numel() for value in parts.values())
                if left >= 0:
                    first = {name: value.detach().clone() for name, value in parts.items()}
                    self._first[id(model)] = first

    def of(self, model: nn.Module) -> State:
        """`a.weight=12.5 b.weight=3.25`: this process's parts of the squares of the norms."""
        parameters = [*model.parameters()]
        if not grouped() or not 0 < len(parameters) <= _NAMES:
            return "", "", ""
        if id(model) not in self._models or self._models[id(model)]() is not model:
            self._models[id(model)] = weakref.ref(model)
            self._first.pop(id(model), None)
        size = sum(_local(parameter).numel() for parameter in parameters)
        versions = tuple(_version(p) + _version(p.grad) for p in parameters)
        known = self._known.get(id(model))
        if known is not None and known[0] == versions and size > _SMALL:
            return known[1]
        with torch.no_grad(), _disable_current_modes():
            forms = _forms(model, self._first.get(id(model), {}))
        self._known[id(model)] = versions, forms
        return forms


def _version(tensor: torch.Tensor | None) -> int:
    if tensor is None:
        return 0
    return id(tensor) + tensor._version + _local(tensor)._version


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def _forms(model: nn.Module, first: dict[str, torch.Tensor]) -> State:
    weights: Squares = {}
    gradients: Squares = {}
    moves: Squares = {}
    reduced = True
    for part, owner, replicas in _parts(model):
        value = _local(part.read())
        _add(weights, part.name, value, replicas)
        before = first.get(part.name)
        if before is not None and before.numel() == value.numel():
            _add(moves, part.name, value.double().reshape(-1) - before.reshape(-1), replicas)
        gradient = owner.grad
        if gradient is None:
            continue
        own = _local(gradient).reshape(-1)
        if part.span:
            own = own[slice(*part.span)]
        reduced = reduced and own.numel() == value.numel()
        _add(gradients, part.name, own, replicas)
    gradients = {name: square for name, square in gradients.items() if square}
    if not reduced:
        return _form(weights), UNREDUCED, _form(moves)
    return _form(weights), _form(gradients), _form(moves)


def _parts(model: nn.Module) -> Iterator[tuple[layouts.Part, torch.Tensor, int]]:
    """What this process holds of each parameter, the one that has its gradient, and of how many replicas it is.

    Nothing of a tensor-parallel model: how its parts add up is not known here.
    """
    holdings = [*_holdings(model)]
    if any(holding is None for holding, _ in holdings):
        return
    for holding, owners in holdings:
        if holding is not None:
            for part in holding.parts:
                yield part, owners[part.owner], holding.replicas


def _add(found: Squares, name: str, value: torch.Tensor, replicas: int) -> None:
    square = value.double().square().sum().item() / replicas
    found[name] = found.get(name, 0.0) + square


def _form(squares: Squares) -> str:
    return " ".join(f"{name}={square:.7g}" for name, square in squares.items())


def _holdings(model: nn.Module) -> Iterator[tuple[layouts.Holding | None, dict[int, torch.Tensor]]]:
    """What this process holds of each unit or parameter, with the tensors that have the gradients."""
    rank, world = identity()
    done: set[int] = set()
    paths = {module: path for path, module in model.named_modules()}
    for module, path in paths.items():
        members = layouts.flat_members(module)
        if members:
            owners = {id(member): member for member in members}
            done.update(owners)
            extended = any(getattr(members[0], "_param_extensions", ()))
            holding = layouts.flat_unit(layouts.clean(path), module, lambda _: True)
            if extended:
                yield None, owners
            else:
                yield holding, owners
        for group in layouts.fsdp2_groups(module):
            for own in group.fsdp_params:
                place = own._module_info
                sharded = own.sharded_param
                if id(sharded) in done:  # a wrapper for checkpointing shows the unit in it
                    continue
                done.update((id(sharded), id(getattr(own, "_unsharded_param", None))))
                name = layouts.clean(paths.get(place.module, ""), place.param_name)
                yield layouts.single(name, sharded, world, rank), {id(sharded): sharded}
    for name, parameter in model.named_parameters():
        if id(parameter) not in done:
            single = layouts.single(layouts.clean(name), parameter, world, rank)
            yield single, {id(parameter): parameter}
