"""FSDP1's functions for the state dicts of optimizers, on ``fully_shard`` models.

Unlike the functions of ``torch.distributed.checkpoint.state_dict`` they follow the type that is set on the model
(:func:`set_state_dict_type`), load nothing themselves, and do not step an optimizer that has no state yet. No state
dict that is given is changed, and no two tensors of a result are the same memory. All ranks must call them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .api import StateDictType
from .optimizer_conversion import FromRank0, StateDict, load_states, save_states
from .optimizer_keys import grouped_parameters, warn_of_input
from .state_dict_types import default_settings, get_state_dict_type
from .still_fsdp1 import or_fsdp1s


@or_fsdp1s
def optim_state_dict(
    model: nn.Module,
    optim: torch.optim.Optimizer,
    optim_state_dict: StateDict | None = None,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """The state of ``optim``, or ``optim_state_dict``, by parameter names, of the type that is set on ``model``.

    With ``rank0_only`` the first rank of ``group`` has the result, the others an empty dict.
    """
    settings = get_state_dict_type(model) or default_settings()
    return save_states(
        model,
        optim,
        optim.state_dict() if optim_state_dict is None else optim_state_dict,
        full=settings.state_dict_type == StateDictType.FULL_STATE_DICT,
        offload=settings.optim_state_dict_config.offload_to_cpu,
        keep=not _rank0_only(model) or dist.get_rank(group) == 0,
        group=group,
    )


@or_fsdp1s
def full_optim_state_dict(
    model: nn.Module,
    optim: torch.optim.Optimizer,
    optim_input: Iterable[Any] | None = None,
    rank0_only: bool = True,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """The whole state of ``optim`` on the CPU, whatever type is set; ``optim_input`` is not needed."""
    _warn("full_optim_state_dict", "optim_state_dict", optim_input)
    keep = not rank0_only or dist.get_rank(group) == 0
    return save_states(
        model, optim, optim.state_dict(), full=True, offload=True, keep=keep, group=group
    )


@or_fsdp1s
def sharded_optim_state_dict(
    model: nn.Module, optim: torch.optim.Optimizer, group: dist.ProcessGroup | None = None
) -> StateDict:
    """The state of ``optim`` as DTensors on the CPU, for ``torch.distributed.checkpoint``."""
    _warn("sharded_optim_state_dict", "optim_state_dict")
    return save_states(
        model, optim, optim.state_dict(), full=False, offload=True, keep=True, group=group
    )


@or_fsdp1s
def optim_state_dict_to_load(
    model: nn.Module,
    optim: torch.optim.Optimizer,
    optim_state_dict: StateDict,
    is_named_optimizer: bool = False,
    load_directly: bool = False,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """What ``optim.load_state_dict`` takes, of a state dict by parameter names, which may come from FSDP1.

    States may be whole tensors or DTensors; parameters without a state get none, as before their first step. With
    ``rank0_only`` set on the model for optimizers, only the first rank of ``group`` needs ``optim_state_dict``. The
    three objects may come in any order, as FSDP1's own order changed (torch 2.1).

    Raises ValueError for a state dict that does not fit the optimizer: in its keys, groups or shapes.
    """
    model, optim, optim_state_dict = _in_order(model, optim, optim_state_dict)
    source = FromRank0(group) if _rank0_only(model) else None
    groups = grouped_parameters(model, optim)
    result = load_states(model, groups, optim_state_dict, source, is_named_optimizer)
    if load_directly:
        optim.load_state_dict(result)
    return result


@or_fsdp1s
def shard_full_optim_state_dict(
    full_optim_state_dict: StateDict,
    model: nn.Module,
    optim_input: Iterable[Any] | None = None,
    optim: torch.optim.Optimizer | None = None,
) -> StateDict:
    """:func:`optim_state_dict_to_load` of a whole state dict that every rank has.

    With neither ``optim_input`` nor ``optim`` it is of the model's parameters, in the groups of the state dict.
    """
    _warn("shard_full_optim_state_dict", "optim_state_dict_to_load", optim_input)
    return load_states(model, _groups(model, optim, optim_input), full_optim_state_dict)


@or_fsdp1s
def scatter_full_optim_state_dict(
    full_optim_state_dict: StateDict | None,
    model: nn.Module,
    optim_input: Iterable[Any] | None = None,
    optim: torch.optim.Optimizer | None = None,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """:func:`shard_full_optim_state_dict` where only the first rank of ``group`` has it."""
    _warn("scatter_full_optim_state_dict", "optim_state_dict_to_load", optim_input)
    groups = _groups(model, optim, optim_input)
    return load_states(model, groups, full_optim_state_dict or {}, FromRank0(group))


@or_fsdp1s
def flatten_sharded_optim_state_dict(
    sharded_optim_state_dict: StateDict, model: nn.Module, optim: torch.optim.Optimizer
) -> StateDict:
    """:func:`optim_state_dict_to_load` of what :func:`sharded_optim_state_dict` gives."""
    _warn("flatten_sharded_optim_state_dict", "optim_state_dict_to_load")
    return load_states(model, grouped_parameters(model, optim), sharded_optim_state_dict)


def _groups(
    model: nn.Module, optim: torch.optim.Optimizer | None, optim_input: Iterable[Any] | None
) -> list[list[nn.Parameter]] | None:
    if optim is None and optim_input is None:
        return None
    return grouped_parameters(model, optim, optim_input)


def _warn(name: str, instead: str, optim_input: object = None) -> None:
    """FSDP1's own advice on its older functions, and on an argument of theirs."""
    warnings.warn(
        f"``FullyShardedDataParallel.{name}``is being deprecated and is replaced by "
        f"``FullyShardedDataParallel.{instead}``. ``FullyShardedDataParallel.{name}`` may be removed "
        "after PyTorch 2.2.",
        FutureWarning,
        stacklevel=4,
    )
    warn_of_input(optim_input)


def _rank0_only(model: nn.Module) -> bool:
    settings = get_state_dict_type(model) or default_settings()
    return bool(getattr(settings.optim_state_dict_config, "rank0_only", False))


def _in_order(*given: Any) -> tuple[nn.Module, Any, StateDict]:
    model = next((each for each in given if isinstance(each, nn.Module)), None)
    state = next((each for each in given if isinstance(each, dict)), {})
    optim = next((each for each in given if each is not model and each is not state), None)
    if model is None or not hasattr(optim, "param_groups"):
        kinds = ", ".join(type(each).__name__ for each in given)
        raise ValueError(f"expected a model, an optimizer and its state dict, not {kinds}")
    return model, optim, state
