"""Whole tensors from sharded ones, and shards from whole ones, a tensor at a time."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor

from . import tensor_parallel
from .torch_private import group_of_shards


@torch.no_grad()
def gather(tensor: DTensor, offload_to_cpu: bool = False) -> torch.Tensor:
    """The whole tensor; gathered on the mesh's device, as the backend may know no other, by all ranks of the mesh.

    Of a tensor-parallel model it is whole over FSDP's ranks, a DTensor still, as FSDP1's. Where nothing is sharded the
    result may be the memory of ``tensor`` itself: see :func:`apart_from`.
    """
    if tensor_parallel.is_shown(tensor):
        if offload_to_cpu:
            return offloaded(tensor)
        return tensor
    part = tensor_parallel.over_fsdp(tensor)
    if part is not None:
        return tensor_parallel.whole_over_fsdp(gather(part, offload_to_cpu), tensor)
    mesh = tensor.device_mesh
    local = tensor.to_local()
    if local.device.type != mesh.device_type:
        local = local.to(current_device(mesh.device_type))
        tensor = _with_local(local, tensor)
    # Over one rank torch 2.8's full_tensor() is a copy, where a change would be lost.
    whole = local
    if is_sharded(tensor):
        whole = tensor.full_tensor()
    if offload_to_cpu:
        return whole.cpu()
    return whole


@torch.no_grad()
def shard(whole: torch.Tensor, like: DTensor) -> DTensor:
    """This rank's part of ``whole``, laid out as ``like`` is; without communication, and on the mesh's device.

    Where nothing is sharded it may be the memory of ``whole``. Of a tensor-parallel model ``whole`` may be what
    :func:`gather` gives.
    """
    part = tensor_parallel.over_fsdp(like)
    if part is not None:
        own = shard(tensor_parallel.part_of(whole, like), part)
        return _with_local(own.to_local(), like)
    return distribute_tensor(whole.detach(), like.device_mesh, like.placements, src_data_rank=None)


@torch.no_grad()
def sharded_as(value: torch.Tensor, like: DTensor) -> torch.Tensor:
    """``value`` laid out, and on the device, as ``like`` is, where both have the same shape.

    ``value`` may be whole (the same on all ranks, or this rank's part of it is right), a DTensor,
    or a ShardedTensor of FSDP1. A DTensor of another layout is gathered by all of its ranks.
    """
    if value.shape != like.shape:
        return value
    if isinstance(value, DTensor):
        if (value.device_mesh, value.placements) != (like.device_mesh, like.placements):
            value = shard(_as_gathered(value, like), like)
    elif hasattr(value, "local_shards"):
        value = _from_sharded_tensor(value, like)
    else:
        value = shard(value, like)
    assert isinstance(value, DTensor)
    local = value.to_local()
    device = like.to_local().device
    if local.device == device or device.type == "meta":
        return value
    return _with_local(local.to(device), value)


def _as_gathered(value: DTensor, like: DTensor) -> torch.Tensor:
    """``value`` as :func:`gather` gives ``like``, or the whole of it."""
    whole = gather(value)
    if isinstance(whole, DTensor) and not tensor_parallel.shows(whole, like):
        return whole.full_tensor()
    return whole


def is_sharded(tensor: DTensor) -> bool:
    """Whether FSDP's ranks hold different parts: not so under NO_SHARD, nor on one rank."""
    mesh = tensor.device_mesh
    placements = tensor.placements
    dims = tensor_parallel.dims_of_fsdp(tensor)
    return any(mesh.size(dim) > 1 and not placements[dim].is_replicate() for dim in dims)


def is_first(tensor: DTensor) -> bool:
    """Whether this rank is the first of those that share the shards, or hold the same."""
    mesh = tensor.device_mesh
    every = tensor_parallel.dims_of_fsdp(tensor)
    shared = [dim for dim in every if not tensor.placements[dim].is_replicate()]
    dims = shared if is_sharded(tensor) else every
    return all(mesh.get_local_rank(dim) == 0 for dim in dims)


@torch.no_grad()
def offloaded(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` with its values, or its shards, on the CPU."""
    if isinstance(tensor, DTensor):
        return _with_local(tensor.to_local().cpu(), tensor)
    return tensor.cpu()


@torch.no_grad()
def assign_data(tensor: DTensor, value: torch.Tensor) -> None:
    """``tensor.data = value`` of a sharded parameter or gradient: copies ``value``, whole or a DTensor, into the shards.

    Raises RuntimeError for another shape or dtype: FSDP2 keeps the memory of a shard.
    """
    if value.shape != tensor.shape or value.dtype != tensor.dtype:
        raise RuntimeError(
            f"a sharded tensor of shape {tuple(tensor.shape)} and {tensor.dtype} cannot take "
            f"data of shape {tuple(value.shape)} and {value.dtype}"
        )
    tensor.to_local().copy_(local_shard(sharded_as(value, tensor)))


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded parameter or gradient, as a plain tensor that shares its memory; a plain tensor is
    its own.

    FSDP1's parameters and gradients were such parts, so that norms and counts of them, reduced over ranks by the
    program itself, came out right. Of a DTensor they are the whole tensor's already, or, read with ``item()``, this
    rank's. A part has all dimensions but the first whole, where FSDP1's had one dimension; on some ranks it is empty.
    """
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    return tensor


def memory(tensor: torch.Tensor) -> tuple[torch.device, int]:
    """What two tensors share if a change of one is a change of the other."""
    if hasattr(tensor, "local_shards"):
        local = _own_part(tensor)
    else:
        local = local_shard(tensor)
    return local.device, local.untyped_storage().data_ptr()


def apart_from(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``tensor``, or a copy of it if it is the memory of ``other``."""
    if memory(tensor) == memory(other):
        return tensor.clone()
    return tensor


def current_device(kind: str) -> torch.device:
    """Where this rank communicates on a mesh of that kind of device."""
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device(kind, torch.accelerator.current_device_index())


def _from_sharded_tensor(value: Any, like: DTensor) -> DTensor:
    """FSDP1 cut along the first dimension, as FSDP2 does; what other ranks share is gathered by those."""
    own = _own_part(value)
    expected = like.to_local()
    group = group_of_shards(value)
    ranks = group.size()
    mesh = like.device_mesh
    if ranks == mesh.size(mesh.ndim - 1):
        if own.numel() != expected.numel() or (own.numel() and own.shape != expected.shape):
            raise ValueError(
                f"a ShardedTensor has a part of shape {tuple(own.shape)} where this rank has "
                f"{tuple(expected.shape)}: load the checkpoint with torch.distributed.checkpoint"
            )
        return _with_local(own.reshape(expected.shape), like)
    rows = -(-value.shape[0] // ranks)
    device = current_device(mesh.device_type)
    padded = torch.zeros(rows, *value.shape[1:], dtype=value.dtype, device=device)
    padded[: own.shape[0]].copy_(own.reshape(-1, *value.shape[1:]))
    whole = padded.new_empty(ranks * rows, *value.shape[1:])
    dist.all_gather_into_tensor(whole, padded, group)
    return shard(whole[: value.shape[0]], like)


def _own_part(value: Any) -> torch.Tensor:
    """Of a ShardedTensor."""
    shards = value.local_shards()
    return shards[0].tensor if shards else torch.empty(0, dtype=value.dtype)


def _with_local(local: torch.Tensor, like: DTensor) -> DTensor:
    return DTensor.from_local(
        local,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
