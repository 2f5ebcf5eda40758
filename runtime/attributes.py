"""FSDP1's attributes of a unit: ``sharding_strategy``, ``mixed_precision``, ``process_group`` and the like."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.tensor import DTensor

from .api import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy
from .forms import WRAPPED
from .gather import current_device
from .materialize import own_modules
from .notes import notes_of
from .torch_private import (
    keeps_unsharded_after_forward,
    parameter_groups,
    precision_policy,
    prefetches_in_forward,
    units_of,
)


def given_attributes(unit: nn.Module) -> Mapping[str, Any] | None:
    """What FSDP1's arguments came to; None for a unit that the program sharded with FSDP2's own."""
    if WRAPPED in unit._modules:
        return vars(unit)
    return notes_of(unit).arguments


def attributes_of(unit: Any) -> Mapping[str, Any]:
    """FSDP1's attributes of any unit; where ``fully_shard`` was called with FSDP2's arguments, what these come to."""
    given = given_attributes(unit)
    if given is None:
        return _derived(unit)
    return given


def _derived(unit: Any) -> dict[str, Any]:
    policy = precision_policy(unit)
    groups = [group for below in [unit, *units_of(unit)] for group in parameter_groups(below)]
    mesh = groups[0].mesh_info.mesh if groups else None
    if mesh is None:
        shards = None
    else:
        shards = mesh.get_group(mesh.ndim - 1)
    replicated = mesh is not None and mesh.ndim == 2
    if mesh is not None and mesh.size(mesh.ndim - 1) == 1:
        strategy = ShardingStrategy.NO_SHARD
        shards = mesh.get_group(0)
    else:
        keeps = keeps_unsharded_after_forward(unit)
        strategy = _STRATEGIES[replicated, keeps]
    group = dist.group.WORLD if shards is None else shards
    assert group is not None
    gathered = {getattr(p, "_unsharded_param", None) for g in groups for p in g.fsdp_params}
    own = [p for each in own_modules(unit, ()) for p in each.parameters(recurse=False)]
    return {
        "process_group": group,
        "_inter_node_pg": mesh.get_group(0) if mesh is not None and strategy.is_hybrid else None,
        "rank": group.rank(),
        "world_size": group.size(),
        "compute_device": current_device("cpu" if mesh is None else mesh.device_type),
        "sharding_strategy": strategy,
        "mixed_precision": MixedPrecision(
            policy.param_dtype,
            policy.reduce_dtype,
            notes_of(unit).buffer_dtype,
            cast_forward_inputs=policy.cast_forward_inputs and policy.param_dtype is not None,
        ),
        "cpu_offload": CPUOffload(
            any(isinstance(g.offload_policy, CPUOffloadPolicy) for g in groups)
        ),
        "backward_prefetch": BackwardPrefetch.BACKWARD_PRE,
        "forward_prefetch": prefetches_in_forward(unit),
        "limit_all_gathers": True,
        "_use_orig_params": True,
        "_device_mesh": mesh,
        "_ignored_modules": set(),
        # A forward may have left whole parameters in the place of the sharded ones.
        "_ignored_params": {p for p in own if not isinstance(p, DTensor) and p not in gathered},
    }


_STRATEGIES = {
    (False, False): ShardingStrategy.FULL_SHARD,
    (False, True): ShardingStrategy.SHARD_GRAD_OP,
    (True, False): ShardingStrategy.HYBRID_SHARD,
    (True, True): ShardingStrategy._HYBRID_SHARD_ZERO2,
}
