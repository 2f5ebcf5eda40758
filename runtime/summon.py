"""Whole parameters for a while: FSDP1's ``summon_full_params``."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from . import tensor_parallel
from .api import ShardingStrategy
from .attributes import given_attributes
from .forms import or_fsdp1s
from .gather import gather, shard
from .materialize import own_modules
from .notes import notes_of
from .torch_private import initialize, is_running, parameter_groups, units_of
from .writeback import tell_of_change, write_back


@or_fsdp1s
@contextlib.contextmanager
def summon_full_params(
    module: nn.Module,
    recurse: bool = True,
    writeback: bool = True,
    rank0_only: bool = False,
    offload_to_cpu: bool = False,
    with_grads: bool = False,
) -> Iterator[None]:
    """Inside, the parameters of ``module`` are whole and in their own dtype, as under FSDP1; called by all ranks.

    FSDP2's ``unshard()`` does less: it casts to ``param_dtype``, forgets changes and does not recurse. A module
    without sharded parts is left as it is. A forward inside uses the whole parameters as they are, with changes,
    where the unit is the bridge's; of ``fully_shard`` it gathers the sharded ones. Without ``writeback`` changes stay
    all the same where nothing is sharded.

    Raises:
        NotImplementedError: for what FSDP1 refuses as well (``_unshard_param_utils.py``).
        AssertionError: inside a forward, a backward or another context.
    """
    units = [unit for unit in units_of(module) if recurse or id(unit) == id(module)]
    for unit in units:
        _check(unit, writeback, rank0_only, offload_to_cpu, with_grads)
        write_back(unit, parameter_groups(unit))
    for unit in units:
        initialize(unit)
    with whole_parameters(units, writeback, rank0_only, offload_to_cpu, with_grads):
        yield


@contextlib.contextmanager
def whole_parameters(
    units: list[Any],
    writeback: bool = True,
    rank0_only: bool = False,
    offload_to_cpu: bool = False,
    with_grads: bool = False,
) -> Iterator[None]:
    """:func:`summon_full_params` of some units, which need not be part of a root yet."""
    for unit in units:
        write_back(unit, parameter_groups(unit))
        tell_of_change(unit)
        FSDPModule.reshard(unit)
        tensor_parallel.follow(unit)
    places = _places(units)
    summoned: dict[Any, nn.Parameter] = {}
    for sharded in places:  # a collective each: every rank gathers, even one that keeps its shards
        whole = nn.Parameter(gather(sharded, offload_to_cpu), sharded.requires_grad)
        if with_grads and sharded.grad is not None:
            whole.grad = gather(sharded.grad, offload_to_cpu)
        last = tensor_parallel.dims_of_fsdp(sharded)[-1]
        if not rank0_only or sharded.device_mesh.get_local_rank(last) == 0:
            summoned[sharded] = whole
    for sharded, whole in summoned.items():
        _put(whole, places[sharded])
    _mark(units, True)
    try:
        yield
    finally:
        _mark(units, False)
        for unit in units:  # a forward inside may have left parameters gathered
            FSDPModule.reshard(unit)
        for sharded, whole in summoned.items():
            _put(sharded, places[sharded])
            if writeback:
                _take_shard(sharded, whole)
            if writeback and with_grads:
                _take_shard(sharded.grad, whole.grad)


def _mark(units: list[Any], is_summoned: bool) -> None:
    for unit in units:
        notes_of(unit).is_summoned = is_summoned


def _check(
    unit: Any, writeback: bool, rank0_only: bool, offload_to_cpu: bool, with_grads: bool
) -> None:
    attributes = given_attributes(unit) or {}
    original = attributes.get("_use_orig_params", True)
    if with_grads and (offload_to_cpu or not original):
        raise NotImplementedError(
            f"with_grads={with_grads}, use_orig_params={original}, offload_to_cpu={offload_to_cpu} "
            "is not supported yet"
        )
    if offload_to_cpu and attributes.get("sharding_strategy") is ShardingStrategy.NO_SHARD:
        raise NotImplementedError("offload_to_cpu=True and NO_SHARD is not supported yet")
    if writeback and rank0_only:
        raise NotImplementedError("writeback=True and rank0_only=True is not supported yet")
    if offload_to_cpu and not rank0_only:
        warnings.warn(
            "offload_to_cpu=True and rank0_only=False may result in the unsharded parameters being "
            "redundantly copied to CPU memory for GPUs sharing the same CPU memory, which risks CPU "
            "OOM. We recommend using offload_to_cpu=True with rank0_only=True.",
            stacklevel=5,
        )
    if is_running(unit):
        raise AssertionError("Cannot manually unshard parameters during forward/backward")
    if notes_of(unit).is_summoned:
        raise AssertionError(
            "Cannot manually unshard parameters when already unsharding parameters"
        )


def _places(units: list[Any]) -> dict[Any, list[tuple[nn.Module, str]]]:
    """Every sharded parameter of the units with the modules and names that it is found under."""
    found: dict[Any, list[tuple[nn.Module, str]]] = {}
    for unit in units:
        for owner in own_modules(unit, ()):
            for name, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
                if isinstance(parameter, DTensor):
                    found.setdefault(parameter, []).append((owner, name))
    return found


def _put(parameter: nn.Parameter, places: list[tuple[nn.Module, str]]) -> None:
    for owner, name in places:
        owner._parameters[name] = parameter


@torch.no_grad()
def _take_shard(sharded: Any, whole: torch.Tensor | None) -> None:
    """Copies this rank's part of ``whole``, where there are both."""
    if sharded is not None and whole is not None:
        sharded.to_local().copy_(shard(whole, sharded).to_local())
