"""Loading an optimizer's state that FSDP1 may have saved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from .gather import sharded_as
from .optimizer_keys import clean, named

if TYPE_CHECKING:
    from torch.distributed.checkpoint.state_dict import StateDictOptions


def set_optimizer_state_dict(
    model: nn.Module,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    optim_state_dict: dict[str, Any] | None,
    *,
    options: StateDictOptions | None = None,
) -> None:
    """``torch.distributed.checkpoint.state_dict.set_optimizer_state_dict``, also for FSDP1's files.

    With ``use_orig_params=False`` FSDP1 saves one ``step`` for all parameters of a unit, and
    ``torch.save`` keeps it one tensor. Loaded so, an optimizer of the parameters themselves counts
    every step as many times as the unit has parameters, without an error. Here each parameter gets
    its own. ``model`` may still be FSDP1's. ``optim_state_dict`` is not changed.

    Raises:
        ValueError: the state dict is keyed by numbers.
    """
    # Not at the top: the module needs FSDP1, which a later torch may not have.
    from torch.distributed.checkpoint import state_dict as torchs

    optim_state_dict = optim_state_dict or {}  # None: with broadcast_from_rank0, on other ranks
    if any(isinstance(key, int) for key in optim_state_dict.get("state", ())):
        raise ValueError(
            "the optimizer's state dict is keyed by numbers: give it the parameters' names with "
            "rekey_optim_state_dict(state_dict, OptimStateKeyType.PARAM_NAME, model, optim=...)"
        )
    options = options or torchs.StateDictOptions()
    if options.full_state_dict:
        stateless = _if_stateless(optim_state_dict, options.broadcast_from_rank0)
        if stateless is not None:
            # torch asks the states where they are, and fails if there are none, as of plain SGD.
            optim_state_dict = stateless
            options = replace(options, full_state_dict=False, broadcast_from_rank0=False)
    given = _unshared(optim_state_dict)
    _lay_out(given.get("state", {}), model)
    torchs.set_optimizer_state_dict(model, optimizers, given, options=options)


def _if_stateless(state_dict: dict[str, Any], from_rank0: bool) -> dict[str, Any] | None:
    """A state dict with groups alone, of the first rank if the others have none."""
    found = [state_dict if state_dict.get("state") == {} else None]
    if from_rank0:
        dist.broadcast_object_list(found)
    return found[0]


def _lay_out(states: dict[str, Any], model: nn.Module) -> None:
    """Makes DTensors of ShardedTensors, which `load_sharded_optimizer_state_dict` gives."""
    parameters = named(model)
    for name, state in states.items():
        parameter = parameters.get(clean(name))
        for key, value in state.items() if isinstance(state, dict) else ():
            if isinstance(parameter, DTensor) and hasattr(value, "local_shards"):
                state[key] = sharded_as(value, parameter)


def _unshared(value: Any) -> Any:
    """A copy of nested dicts and lists with every number in a tensor of its own."""
    if isinstance(value, torch.Tensor):
        return value.clone() if value.dim() == 0 else value
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unshared(item) for item in value]
    return value
