"""Models that are sharded by tensor parallelism and, over that, by FSDP: what FSDP1 gathered of their tensors.

Under FSDP1 a whole parameter was whole over FSDP's ranks only, a DTensor on the mesh of tensor parallelism, which its forward
computes with. FSDP2's shards are DTensors over both meshes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from .torch_private import parallel_parameters

# By the mesh of sharded parameters: that of FSDP, whose dimensions come first in it, and that of tensor parallelism.
_meshes: dict[DeviceMesh, tuple[DeviceMesh, DeviceMesh]] = {}


def follow(unit: Any) -> None:
    """Remembers the meshes of a unit, just sharded."""
    for mesh, shards, parallel in parallel_parameters(unit):
        _meshes[mesh] = shards, parallel


def dims_of_fsdp(tensor: DTensor) -> range:
    """The dimensions of the mesh of ``tensor`` that FSDP shards or replicates over."""
    shards, _ = _meshes.get(tensor.device_mesh, (tensor.device_mesh, None))
    return range(shards.ndim)


def over_fsdp(tensor: DTensor) -> DTensor | None:
    """This rank's part by tensor parallelism, sharded by FSDP alone; None for a tensor that is not laid out by both.

    Such a one may have come from a checkpoint: sharded by FSDP first, and its parts by tensor parallelism.
    """
    if tensor.device_mesh not in _meshes:
        return None
    shards, parallel = _meshes[tensor.device_mesh]
    own = tensor.placements[: shards.ndim]
    others = tensor.placements[shards.ndim :]
    placements = []
    for placement in own:
        if placement.is_replicate():
            placements.append(placement)
            continue
        dim = placement.dim  # type: ignore[attr-defined]
        split = [
            n for n, other in enumerate(others) if other.is_shard(dim) and parallel.size(n) > 1
        ]
        if split and not _is_strided(placement):
            return None
        placements.append(Shard(dim))
    whole = torch.empty(tensor.shape, device="meta")
    part = distribute_tensor(whole, parallel, others, src_data_rank=None).to_local()
    return DTensor.from_local(
        tensor.to_local(),
        shards,
        placements,
        run_check=False,
        shape=part.shape,
        stride=part.contiguous().stride(),
    )


def _is_strided(placement: Any) -> bool:
    """Whether FSDP shards what tensor parallelism has sharded along the same dimension."""
    return hasattr(placement, "split_factor")


def whole_over_fsdp(part: torch.Tensor, like: DTensor) -> DTensor:
    """What FSDP1 shows of ``like``: ``part``, this rank's by tensor parallelism, as a DTensor on the mesh of that."""
    shards, parallel = _meshes[like.device_mesh]
    return DTensor.from_local(
        part,
        parallel,
        like.placements[shards.ndim :],
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def part_of(whole: torch.Tensor, like: DTensor) -> torch.Tensor:
    """This rank's part by tensor parallelism of ``whole``, which is whole on every rank or as FSDP1 shows it."""
    shards, parallel = _meshes[like.device_mesh]
    placements = like.placements[shards.ndim :]
    if not isinstance(whole, DTensor):
        whole = distribute_tensor(whole.detach(), parallel, placements, src_data_rank=None)
    return whole.redistribute(parallel, placements).to_local()


def is_shown(tensor: DTensor) -> bool:
    """Whether ``tensor`` is whole over FSDP's ranks."""
    return any(tensor.device_mesh == parallel for _, parallel in _meshes.values())


def shows(value: DTensor, like: DTensor) -> bool:
    """Whether ``value`` is whole over the FSDP ranks of ``like``."""
    return like.device_mesh in _meshes and value.device_mesh == _meshes[like.device_mesh][1]


def is_parallel(tensor: DTensor) -> bool:
    """Whether ``tensor`` is sharded by tensor parallelism and by FSDP."""
    return tensor.device_mesh in _meshes
