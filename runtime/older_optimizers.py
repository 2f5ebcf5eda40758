"""Optimizers that are older than the wrapping of their model.

With ``use_orig_params=True`` FSDP1 keeps the model's parameter objects, which ``fully_shard`` replaces.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .gather import sharded_as
from .gradients import require_reduced
from .torch_private import before_param_group

_optimizers: WeakSet[Optimizer] = WeakSet()
_watching: list[bool] = []


class StaleParameter(RuntimeError):
    """A parameter is used that sharding has replaced."""


class _Stale(nn.Parameter):
    """A parameter object that was replaced, and can no longer be used."""

    _successor: nn.Parameter

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise StaleParameter(
            "this parameter was replaced when its module was sharded: take it from model.parameters() "
            "after that"
        )

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return "a parameter that sharding has replaced"


def replace_parameters(
    successors: Mapping[torch.Tensor, nn.Parameter], attributes: bool = True
) -> int:
    """Puts the new parameters in the place of the old ones in all optimizers, also those that are made later; returns how
    many were in optimizers.

    Their groups, lists and order stay, so that schedulers and closures hold on to them; states are sharded.
    """
    replaced = sum(_replace_in(optimizer, successors) for optimizer in list(_optimizers))
    for old, new in successors.items():
        old.grad = None
        if attributes:
            vars(new).update(
                vars(old)
            )  # what the program has set there: `p.no_weight_decay = True`
        old.data = torch.empty(0, dtype=old.dtype)  # the whole parameter is not needed any more
        old._successor = new  # type: ignore[attr-defined]
        old.__class__ = _Stale
    return replaced


@torch.no_grad()
def _replace_in(optimizer: Optimizer, successors: Mapping[torch.Tensor, nn.Parameter]) -> int:
    replaced = 0
    for group in optimizer.param_groups:
        replaced += sum(p in successors for p in group["params"])
        group["params"][:] = [successors.get(p, p) for p in group["params"]]
    for old in [p for p in optimizer.state if p in successors]:
        new = successors[old]
        optimizer.state[new] = {
            key: sharded_as(value, new)
            if isinstance(value, torch.Tensor) and isinstance(new, DTensor)
            else value
            for key, value in optimizer.state.pop(old).items()
        }
    return replaced


def _before_param_group(optimizer: Optimizer, group: dict[str, Any]) -> None:
    _optimizers.add(optimizer)
    given = group.get("params")
    if isinstance(given, (torch.Tensor, set)) or given is None:
        if isinstance(given, _Stale):
            group["params"] = given._successor
        return
    group["params"] = [_current(each) for each in given]


def _current(given: Any) -> Any:
    """The new parameter for an old one, also in a pair with its name."""
    if isinstance(given, tuple):
        return tuple(_current(each) for each in given)
    return given._successor if isinstance(given, _Stale) else given


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        require_reduced(group["params"])
        _step_one_by_one_if_mixed(group)


def _step_one_by_one_if_mixed(group: dict[str, Any]) -> None:
    """Ignored parameters are plain tensors, and ``foreach``, CUDA's default, takes no such mixture."""
    if group.get("foreach", False) is not None or group.get("fused"):
        return
    sharded = {isinstance(p, DTensor) for p in group["params"]}
    if len(sharded) > 1 and any(p.device.type != "cpu" for p in group["params"]):
        group["foreach"] = False


def watch() -> None:
    """Finds the optimizers that there are, and those that are made from now on."""
    if not _watching:
        _watching.append(True)
        _optimizers.update(each for each in gc.get_objects() if issubclass(type(each), Optimizer))
        before_param_group(_before_param_group)
        register_optimizer_step_pre_hook(_before_step)
