"""The device and the mesh that a sharding strategy runs on."""

import contextlib
import warnings
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from .api import ShardingStrategy
from .gather import current_device

MESH_DIM_NAMES = ("replicate", "shard")

# One group to shard over, or for the hybrid strategies FSDP1's pair (shard group, replicate group).
ProcessGroups = dist.ProcessGroup | tuple[dist.ProcessGroup, dist.ProcessGroup]


def compute_device(
    parameters: Iterable[nn.Parameter],
    device_id: int | str | torch.device | None = None,
    device_mesh: DeviceMesh | None = None,
) -> torch.device:
    """The device to train on, made the current one because ``fully_shard`` uses that.

    As in FSDP1 (``_init_utils.py``, ``_get_compute_device``): ``device_id``, else where the parameters are unless
    that is the CPU, else the accelerator; without one the CPU, where FSDP1 refused.
    """
    placed = next((p.device for p in parameters if p.device.type not in ("cpu", "meta")), None)
    if device_id is not None:
        device = _device(device_id)
        if device.type != "cpu" and device.index is None:
            warnings.warn(
                f"device_id={device_id!r} has no index: using the current device", stacklevel=5
            )
    elif placed is not None:
        device = placed
    elif device_mesh is not None:
        device = torch.device(device_mesh.device_type)
    elif torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator() or torch.device("cpu")
    else:
        device = torch.device("cpu")
    if device.type != "cpu":
        current = torch.accelerator.current_device_index()
        if device.index is None:
            device = torch.device(device.type, current)
        elif device.index != current:
            torch.accelerator.set_device_index(device.index)
    if placed is not None and placed != device:
        raise ValueError(
            f"Inconsistent compute device and `device_id`: {placed} vs {device}: move the model or "
            "change device_id"
        )
    return device


def _device(device_id: int | str | torch.device) -> torch.device:
    with contextlib.suppress(RuntimeError):
        device = torch.device(device_id)
        if device.type == "cpu" or torch.accelerator.is_available():
            return device
    raise ValueError(
        f"device_id={device_id!r} is not a device of this machine; without an accelerator pass "
        "torch.device('cpu') or None"
    )


def build_mesh(
    strategy: ShardingStrategy,
    device_type: str,
    process_group: ProcessGroups | None = None,
    device_mesh: DeviceMesh | None = None,
) -> DeviceMesh:
    """The mesh on which ``fully_shard`` does what FSDP1 does under ``strategy``; called by all ranks.

    For NO_SHARD it is ``(ranks, 1)``: nothing is sharded over one rank, and gradients are averaged over the other
    dimension. Raises ValueError for what FSDP1 cannot do either.
    """
    if process_group is not None and device_mesh is not None:
        raise ValueError(
            "Cannot pass both process_group and device_mesh at the same time. Please just pass "
            "only one of them."
        )
    if strategy.is_hybrid:
        return _hybrid_mesh(strategy, device_type, process_group, device_mesh)

    if device_mesh is not None and device_mesh.ndim != 1:  # as FSDP1: the first dimension
        process_group = device_mesh.get_group(0)
        device_mesh = None
    if isinstance(process_group, tuple):
        raise ValueError(
            f"process_group is a pair of groups, which only HYBRID_SHARD takes; {strategy.name} "
            "takes one"
        )
    if strategy is ShardingStrategy.NO_SHARD:
        group = process_group
        if device_mesh is not None:
            group = device_mesh.get_group()
        return _replicated_mesh(device_type, group)
    if device_mesh is not None:
        return device_mesh
    if process_group is not None:
        return DeviceMesh.from_group(process_group, device_type)
    return init_device_mesh(device_type, (dist.get_world_size(),))


def _replicated_mesh(device_type: str, group: dist.ProcessGroup | None) -> DeviceMesh:
    if group is None:
        return init_device_mesh(
            device_type, (dist.get_world_size(), 1), mesh_dim_names=MESH_DIM_NAMES
        )
    # Only the ranks of `group` are here, so each makes its group of one by itself.
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    ranks = torch.tensor(dist.get_process_group_ranks(group)).view(-1, 1)
    return DeviceMesh.from_group(
        [group, alone], device_type, mesh=ranks, mesh_dim_names=MESH_DIM_NAMES
    )


def _hybrid_mesh(
    strategy: ShardingStrategy,
    device_type: str,
    process_group: ProcessGroups | None,
    device_mesh: DeviceMesh | None,
) -> DeviceMesh:
    if device_mesh is not None:
        if device_mesh.ndim != 2:
            raise ValueError(f"Expected device_mesh to have ndim=2 but got {device_mesh.ndim}")
        return device_mesh
    if process_group is None:
        per_node = torch.get_device_module(device_type).device_count()
        world_size = dist.get_world_size()
        if world_size % per_node != 0:
            raise ValueError(
                f"{strategy.name} without device_mesh shards over the {per_node} devices of a "
                f"node, which does not divide the world size {world_size}: pass a two-dimensional "
                "device_mesh"
            )
        shape = (world_size // per_node, per_node)
        return init_device_mesh(device_type, shape, mesh_dim_names=MESH_DIM_NAMES)
    if not isinstance(process_group, tuple) or len(process_group) != 2:
        raise ValueError(
            "Expected process_group to be passed in as either None or "
            f"Tuple[dist.ProcessGroup, dist.ProcessGroup] but got {type(process_group)}"
        )
    shard_group, replicate_group = process_group
    # A rank knows the ranks of its own two groups only; its replicas tell it about their shard
    # groups.
    ranks = dist.get_process_group_ranks(shard_group)
    row = torch.tensor(ranks, device=current_device(device_type))
    rows = [torch.empty_like(row) for _ in range(replicate_group.size())]
    dist.all_gather(rows, row, group=replicate_group)
    return DeviceMesh.from_group(
        [replicate_group, shard_group],
        device_type,
        mesh=torch.stack(rows).cpu(),
        mesh_dim_names=MESH_DIM_NAMES,
    )
