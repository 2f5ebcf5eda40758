"""Stand-ins for the functions of torch that rebuild tensors: plain ones become `Stored`, sharded ones `Shards`."""

from __future__ import annotations

from typing import Any

import torch

from fsdp_migrate.checkpoint.errors import Unreadable
from fsdp_migrate.checkpoint.records import Record, Sealed, record
from fsdp_migrate.checkpoint.shards import Shards, chunk_of
from fsdp_migrate.checkpoint.tensors import Lazy, Stored

SHARDED_TENSOR, DTENSOR = record("ShardedTensor"), record("DTensor")
REPLICATE, SPLIT = record("Replicate"), record("Shard")


class Tensor(Record):
    """`torch._utils._rebuild_tensor`, `_v2`; `_v3` names its dtype."""

    def __new__(cls, *args: Any) -> Any:
        (storage, dtype), offset, size, stride = args[:4]
        if len(args) > 6 and isinstance(args[6], torch.dtype):
            dtype = args[6]
        if any(isinstance(extra, dict) and any(extra.values()) for extra in args[6:]):
            raise Unreadable("holds a conjugated or negated view of a tensor")
        return Stored(storage, dtype, tuple(size), tuple(stride), offset)


class Parameter(Record):
    """`torch._utils._rebuild_parameter`: the tensor itself."""

    def __new__(cls, data: Any, *args: Any) -> Any:
        return data


class Wrapper(Record):
    """`torch._utils._rebuild_wrapper_subclass`: a ShardedTensor or a DTensor, whose attributes follow."""


class Typed(Record):
    """`torch._tensor._rebuild_from_type_v2`: calls the first argument, then sets attributes."""

    def __new__(cls, build: Any, kind: Any, args: Any, state: Any) -> Any:
        if not isinstance(build, Sealed):
            raise Unreadable("a tensor is rebuilt by no function of torch")
        made = build(*args)
        if not isinstance(made, Wrapper):
            return made  # what FSDP1 marks a tensor with means nothing in a file
        if kind is SHARDED_TENSOR:
            return _sharded_tensor(made, state)
        if kind is DTENSOR:
            return _dtensor(made, state)
        raise Unreadable(f"holds a tensor subclass {kind.__name__} that is not known")


class Refused(Record):
    """Tensors that cannot be converted piece by piece."""

    def __new__(cls, *args: Any) -> Any:
        raise Unreadable("holds a sparse, quantized, nested or meta tensor: not supported")


def _sharded_tensor(made: Record, state: Any) -> Shards:
    """`ShardedTensor.__getstate__`: local shards, metadata, process group, spec, rrefs."""
    try:
        local, metadata, group = state[:3]
        _, rank, _, ranks = group.args or [group[name] for name in (
            "local_rank", "global_rank", "local_world_size", "global_world_size",
        )]  # fmt: skip
        parts = tuple((_box(shard["metadata"])[0], shard["tensor"]) for shard in local)
        layout = tuple(_box(shard) for shard in metadata["shards_metadata"])
        return Shards(made.args[1], tuple(metadata["size"]), parts, rank, ranks, layout)
    except (TypeError, ValueError, AttributeError, IndexError):
        raise Unreadable("holds a ShardedTensor of an unknown form") from None


def _box(shard: Record) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(shard["shard_offsets"]), tuple(shard["shard_sizes"])


def _dtensor(made: Record, state: Any) -> Shards:
    """The attributes of a DTensor: its local tensor, and mesh and placements in its spec."""
    try:
        attributes = state[1] if isinstance(state, tuple) else state
        spec, local = attributes["_spec"], attributes["_local_tensor"]
        mesh, shape = spec["mesh"], tuple(made.args[2])
        sizes, coordinate = _mesh_sizes(mesh), mesh.get("_coordinate_on_dim")
        dims = []
        for placement in spec["placements"]:
            if not isinstance(placement, (SPLIT, REPLICATE)):
                kind = type(placement).__name__
                raise Unreadable(f"holds a DTensor whose placement is {kind}: not supported")
            dims.append(placement["dim"] if isinstance(placement, SPLIT) else None)
        if coordinate is None:
            parts: tuple[tuple[tuple[int, ...], Lazy], ...] = ()
        else:
            offsets, held = chunk_of(shape, sizes, coordinate, dims)
            if held != local.shape:
                raise Unreadable("holds a DTensor whose local tensor has not the size of its shard")
            parts = ((offsets, local),)
        rank = 0
        for size, index in zip(sizes, coordinate or (), strict=False):
            rank = rank * size + index
        return Shards(made.args[1], shape, parts, rank, _product(sizes))
    except (TypeError, ValueError, AttributeError, IndexError, KeyError):
        raise Unreadable("holds a DTensor of an unknown form") from None


def _mesh_sizes(mesh: Record) -> tuple[int, ...]:
    """A mesh's shape: of its layout in later releases of torch, of the tensor of its ranks in earlier ones."""
    layout = mesh.get("_layout")
    if layout is not None and layout.get("axes") is not None:
        return tuple(_product(axis["shape"]) for axis in layout["axes"])
    if layout is not None:
        shape = layout["shape"]
        shape = shape if isinstance(shape, tuple) else (shape,)
        return tuple(_product(n) if isinstance(n, tuple) else n for n in shape)
    tensor = mesh.get("mesh", mesh.get("_mesh"))
    if isinstance(tensor, Lazy):
        return tensor.shape
    raise Unreadable("holds a DTensor on a mesh of an unknown form")


def _product(numbers: Any) -> int:
    if isinstance(numbers, int):
        return numbers
    total = 1
    for number in numbers:
        total *= _product(number)
    return total
