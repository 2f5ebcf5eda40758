"""Optimizers that are older than the wrapping of their model.

With ``use_orig_params=True`` FSDP1 keeps the model's parameter objects, which ``fully_shard`` replaces.
"""

import gc
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from .changed import of_load, say
from .gather import sharded_as
from .quirks import record_of_parameter

_optimizers: WeakSet[Optimizer] = WeakSet()


class StaleParameter(RuntimeError):
    """A parameter is used that sharding has replaced."""


class _Stale:
    """A parameter object that was replaced, and can no longer be used."""

    __slots__ = ()
    _successor: nn.Parameter

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise StaleParameter(
            "this parameter was replaced when its module was sharded: use model.parameters() "
            "after sharding"
        )

    def __repr__(self, **options: Any) -> str:
        return "a parameter that sharding has replaced"


class _StaleParameter(_Stale, nn.Parameter):  # type: ignore[misc]
    pass


class _StaleDTensor(_Stale, DTensor):  # type: ignore[misc]
    """Of a model whose layers were distributed before, by tensor parallelism."""

    __slots__ = ()


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
        _free(old)
        old._successor = new  # type: ignore[attr-defined]
        if isinstance(old, DTensor):
            old.__class__ = _StaleDTensor
        else:
            old.__class__ = _StaleParameter
    return replaced


def _free(old: torch.Tensor) -> None:
    """Gives the memory of a parameter back, which the sharded one has taken over."""
    nothing = torch.empty(0, dtype=old.dtype)
    if isinstance(old, DTensor):
        old._local_tensor = nothing
    else:
        old.data = nothing


@torch.no_grad()
def _replace_in(optimizer: Optimizer, successors: Mapping[torch.Tensor, nn.Parameter]) -> int:
    replaced = 0
    for group in optimizer.param_groups:
        known = [p for p in group["params"] if p in successors]
        replaced += len(known)
        if any(isinstance(p, DTensor) for p in known):
            say(
                "FSDP206",
                "an optimizer that was created before sharding holds tensor-parallel parameters. It trains them now; under "
                "FSDP1 it did not change them",
            )
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


def before_param_group(optimizer: Optimizer, group: dict[str, Any]) -> None:
    """Follows an optimizer that takes a group of parameters, which become the current ones."""
    _follow(optimizer)
    given = group.get("params")
    if isinstance(given, (torch.Tensor, set)) or given is None:
        if isinstance(given, _Stale):
            group["params"] = _successor(given)
        return
    group["params"] = [_current(each) for each in given]


def _follow(optimizer: Optimizer) -> None:
    if optimizer not in _optimizers:
        _optimizers.add(optimizer)
        optimizer.register_load_state_dict_pre_hook(of_load)


def _current(given: Any) -> Any:
    """The new parameter for an old one, also in a pair with its name."""
    if isinstance(given, tuple):
        return tuple(_current(each) for each in given)
    if isinstance(given, _Stale):
        return _successor(given)
    return given


def _successor(old: _Stale) -> nn.Parameter:
    """The new parameter that an optimizer gets for one from before sharding, which its record counts."""
    new = old._successor
    record = record_of_parameter(new)
    if record is not None:
        record.add("older_optimizers", "parameter")
    return new


def follow_all() -> None:
    """Finds the optimizers that there are."""
    for each in gc.get_objects():
        if issubclass(type(each), Optimizer):
            _follow(each)
