"""What a rank has pickled of a ShardedTensor or a DTensor, and where it lies in the whole tensor."""

import math
from typing import Any

import torch
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

from fsdp_migrate.checkpoint.errors import Unreadable
from fsdp_migrate.checkpoint.parts import Box, Part, Parts
from fsdp_migrate.checkpoint.pickles import Note, is_a

_RANKS = 1 << 20
"""At most so many ranks are believed."""


class _Shards(Parts):
    """Stands in for a class that pickles its local tensors: torch.load makes it and gives it the object's state."""

    def __setstate__(self, state: Any) -> None:
        """Raises Unreadable for a state of another form."""
        try:
            self.read(state)
            if 0 <= self.rank < self.ranks <= _RANKS:
                return
        except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError):
            pass
        raise Unreadable(f"holds a {type(self).__name__} of an unknown form")

    def read(self, state: Any) -> None:
        """Set parts, rank and ranks."""
        raise NotImplementedError


class ShardedTensor(_Shards):
    """`ShardedTensor.__getstate__`: local shards, metadata, process group, spec, rrefs."""

    def read(self, state: Any) -> None:
        """Set parts, rank and ranks."""
        local, metadata, group = state[:3]
        if tuple(metadata["size"]) != self.shape:
            raise ValueError
        _, self.rank, _, self.ranks = group.args or [group[name] for name in (
            "local_rank", "global_rank", "local_world_size", "global_world_size",
        )]  # fmt: skip
        places = [(shard["metadata"], shard["tensor"]) for shard in local]
        self.parts = tuple(
            _held(tensor, (tuple(at["shard_offsets"]), tuple(at["shard_sizes"])))
            for at, tensor in places
        )


class DTensor(_Shards):
    """The attributes of a DTensor: its local tensor, and mesh and placements in its spec."""

    def read(self, state: Any) -> None:
        """Set parts, rank and ranks."""
        attributes = state
        if isinstance(state, tuple):
            attributes = state[1]
        mesh = attributes["_spec"]["mesh"]
        placements = attributes["_spec"]["placements"]
        sizes = _mesh_sizes(mesh)
        coordinate = mesh.get("_coordinate_on_dim")
        self.ranks = math.prod(sizes)
        if coordinate is not None:  # else this rank is not of the mesh
            own, offsets = _compute_local_shape_and_global_offset(
                self.shape, sizes, list(coordinate), list(map(_placement, placements))
            )
            self.parts = (_held(attributes["_local_tensor"], (tuple(offsets), tuple(own))),)
            for size, index in zip(sizes, coordinate, strict=False):
                self.rank = self.rank * size + index


STAND_INS = {
    "torch.distributed._shard.sharded_tensor.api.ShardedTensor": ShardedTensor,
    "torch.distributed.tensor.DTensor": DTensor,
    "torch.distributed._tensor.api.DTensor": DTensor,  # before torch 2.5
}
"""For torch.load."""


def _held(tensor: torch.Tensor, box: Box) -> Part:
    if not isinstance(tensor, torch.Tensor) or tuple(tensor.shape) != box[1]:
        raise Unreadable("holds a shard whose tensor does not have the size of its place")
    return Part(box, lambda: tensor)


def _placement(noted: Note) -> Placement:
    if is_a(noted, "Shard"):
        return Shard(noted["dim"])
    if is_a(noted, "Replicate"):
        return Replicate()
    kind = type(noted).__name__
    raise Unreadable(f"holds a DTensor whose placement is {kind}: not supported")


def _mesh_sizes(mesh: Note) -> tuple[int, ...]:
    """A mesh's shape: of its layout in later releases of torch, of the tensor of its ranks in earlier ones."""
    if (layout := mesh.get("_layout")) is not None:
        axes = layout.get("axes")
        if axes is None:
            shape = layout["shape"]
        else:
            shape = tuple(axis["shape"] for axis in axes)
        if isinstance(shape, tuple):
            return tuple(map(_product, shape))
        return (shape,)
    tensor = mesh.get("mesh", mesh.get("_mesh"))
    if isinstance(tensor, torch.Tensor):
        return tuple(tensor.shape)
    raise Unreadable("holds a DTensor on a mesh of an unknown form")


def _product(numbers: Any) -> int:
    """Of a layout's numbers, which may be nested tuples."""
    if isinstance(numbers, int):
        return numbers
    return math.prod(map(_product, numbers))
