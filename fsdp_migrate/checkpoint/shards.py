"""One rank's part of a tensor, as ShardedTensor and DTensor are pickled, and the joining of all ranks' parts."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fsdp_migrate.checkpoint.errors import LocalShards, Refused
from fsdp_migrate.checkpoint.tensors import Box, Joined, Lazy, covers
from fsdp_migrate.checkpoint.trees import like


@dataclass(frozen=True, eq=False)
class Shards:
    """What one rank's file holds of a tensor: its parts, each with its offsets in the whole.

    `layout` has the boxes of all ranks where the file tells them (ShardedTensor does).
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: tuple[tuple[tuple[int, ...], Lazy], ...]
    rank: int
    ranks: int
    layout: tuple[Box, ...] = ()

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("the pickle changes a tensor")

    @property
    def boxes(self) -> list[Box]:
        """The offsets and sizes of its own parts."""
        return [(offsets, part.shape) for offsets, part in self.parts]


def chunk_of(
    shape: Sequence[int],
    mesh: Sequence[int],
    coordinate: Sequence[int],
    dims: Sequence[int | None],
) -> Box:
    """The part of a tensor at a mesh coordinate; `dims[i]` is what mesh dimension i shards, None where it replicates.

    As DTensor's Shard does it: `torch.chunk`, one mesh dimension after the other.
    """
    offsets, sizes = [0] * len(shape), list(shape)
    for parts, index, dim in zip(mesh, coordinate, dims, strict=True):
        if dim is not None:
            step = math.ceil(sizes[dim] / parts)
            first = min(step * index, sizes[dim])
            offsets[dim] += first
            sizes[dim] = min(step, sizes[dim] - first)
    return tuple(offsets), tuple(sizes)


def join(trees: Sequence[Any], place: str = "") -> Any:
    """The tree of all ranks' files. Sharded tensors become whole; of all else the first rank's value counts."""
    first = next((tree for tree in trees if tree is not None), None)
    if isinstance(first, Shards):
        return _whole([tree for tree in trees if isinstance(tree, Shards)], place)
    if isinstance(first, Mapping):
        mappings = [tree for tree in trees if isinstance(tree, Mapping)]
        keys = dict.fromkeys(key for tree in mappings for key in tree)
        return like(
            first,
            (
                (key, join([t.get(key) for t in mappings], f"{place}.{key}" if place else str(key)))
                for key in keys
            ),
        )
    if isinstance(first, list):
        same = [tree for tree in trees if isinstance(tree, list) and len(tree) == len(first)]
        return [join(values, f"{place}.{i}") for i, values in enumerate(zip(*same, strict=True))]
    if isinstance(first, Lazy):
        if any(isinstance(tree, Lazy) and tree.shape != first.shape for tree in trees):
            raise LocalShards(
                f"{place} is a plain tensor of another shape on each rank: its layout is in no file"
            )
    return first


def _whole(parts: Sequence[Shards], place: str) -> Lazy:
    one = parts[0]
    if any(p.shape != one.shape or p.dtype != one.dtype for p in parts):
        raise Refused(f"{place} has another shape or dtype on each rank: these are several saves")
    found: dict[tuple[int, ...], Lazy] = {}
    for part in parts:
        for offsets, tensor in part.parts:
            if tensor.numel:
                found.setdefault(offsets, tensor)  # replicas are the same
    boxes = [(offsets, tensor.shape) for offsets, tensor in found.items()]
    if not covers(one.shape, boxes):
        have = sorted({part.rank for part in parts})
        missing = sorted(set(range(one.ranks)) - set(have))
        reason = f"the files of ranks {', '.join(map(str, missing))} are missing"
        raise Refused(
            f"{place} is not whole: {reason if missing else 'the shards do not fill it'} "
            f"({len(have)} of {one.ranks} ranks are there)"
        )
    return Joined(one.dtype, one.shape, tuple(found.items()))
