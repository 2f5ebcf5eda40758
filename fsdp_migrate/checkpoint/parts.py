"""Tensors whose parts lie in several places: the chunks of DCP, and the shards that ranks have pickled."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fsdp_migrate.checkpoint.errors import LocalShards, Refused, Unreadable
from fsdp_migrate.checkpoint.notes import Note, note
from fsdp_migrate.checkpoint.trees import like

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""The offsets and the sizes of a part of a tensor."""

_RANKS = 1 << 20
"""At most so many ranks are believed."""


class Part(NamedTuple):
    """A part with its place in the whole; `load` maps it."""

    box: Box
    load: Callable[[], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Parts:
    """A tensor in parts. From a rank's file they are those of `rank`, until `join` has put those of all `ranks` together."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    rank: int = 0
    ranks: int = 1

    def load(self) -> torch.Tensor:
        """The whole tensor: mapped if it is one part, else put together in memory."""
        if len(self.parts) == 1 and self.parts[0].box[1] == self.shape:
            return self.parts[0].load()
        whole = torch.empty(self.shape, dtype=self.dtype)
        for (offsets, sizes), load in self.parts:
            place = tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))
            whole[place] = load()
        return whole


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of either kind."""
    return isinstance(value, (torch.Tensor, Parts))


def nbytes(tensor: torch.Tensor | Parts) -> int:
    """The bytes of its elements."""
    return math.prod(tensor.shape) * tensor.dtype.itemsize


def covers(shape: Sequence[int], boxes: Iterable[Box]) -> bool:
    """Whether the boxes lie in a tensor of that shape, fill it, and do not overlap."""
    filled = [box for box in boxes if math.prod(box[1])]
    for offsets, sizes in filled:
        if not len(offsets) == len(sizes) == len(shape):
            return False
        if any(o < 0 or n < 0 or o + n > m for o, n, m in zip(offsets, sizes, shape, strict=True)):
            return False
    if sum(math.prod(sizes) for _, sizes in filled) != math.prod(shape):
        return False
    cut = [d for d, whole in enumerate(shape) if any(sizes[d] != whole for _, sizes in filled)]
    if len(cut) <= 1:  # the common case, in one pass: a thousand ranks have a thousand boxes
        ends = sorted((o[d], o[d] + n[d]) for d in cut for o, n in filled)
        return all(a[1] <= b[0] for a, b in itertools.pairwise(ends))
    return not any(
        all(max(p, q) < min(p + m, q + n) for p, m, q, n in zip(*one, *other, strict=True))
        for one, other in itertools.combinations(filled, 2)
    )


def join(trees: Sequence[Any], place: str = "") -> Any:
    """The tree of all ranks' files. Sharded tensors become whole; of all else the first rank's value counts.

    Raises Refused where shards are missing, or a tensor has no layout.
    """
    first = next((tree for tree in trees if tree is not None), None)
    if isinstance(first, Parts):
        return _whole([tree for tree in trees if isinstance(tree, Parts)], place)
    if isinstance(first, Mapping):
        held = [tree for tree in trees if isinstance(tree, Mapping)]
        keys = dict.fromkeys(key for tree in held for key in tree)
        inner = ((k, [t.get(k) for t in held], f"{place}.{k}" if place else str(k)) for k in keys)
        return like(first, ((key, join(values, name)) for key, values, name in inner))
    if isinstance(first, list):
        same = [tree for tree in trees if isinstance(tree, list) and len(tree) == len(first)]
        return [join(values, f"{place}.{i}") for i, values in enumerate(zip(*same, strict=True))]
    if isinstance(first, torch.Tensor) and any(
        isinstance(tree, torch.Tensor) and tree.shape != first.shape for tree in trees
    ):
        raise LocalShards(
            f"{place} is a plain tensor of another shape on each rank: its layout is in no file"
        )
    return first


def _whole(ranks: Sequence[Parts], place: str) -> Parts:
    one = ranks[0]
    if any(p.shape != one.shape or p.dtype != one.dtype for p in ranks):
        raise Refused(f"{place} has another shape or dtype on each rank: these are several saves")
    # Replicas have the same place.
    found = {part.box[0]: part for held in ranks for part in held.parts if math.prod(part.box[1])}
    if not covers(one.shape, [part.box for part in found.values()]):
        have = {held.rank for held in ranks}
        missing = ", ".join(str(rank) for rank in range(one.ranks) if rank not in have)
        reason = f"the files of ranks {missing} are missing"
        raise Refused(
            f"{place} is not whole: {reason if missing else 'the shards do not fill it'} "
            f"({len(have)} of {one.ranks} ranks are there)"
        )
    return Parts(one.dtype, one.shape, tuple(found.values()))


def sharded_tensor(kind: Any, dtype: torch.dtype, shape: tuple[int, ...], state: Any) -> Parts:
    """What a rank has pickled of a ShardedTensor or DTensor; raises Unreadable for any other kind or form."""
    readers = {note("ShardedTensor"): _sharded_tensor, note("DTensor"): _dtensor}
    name = getattr(kind, "__name__", kind)
    if kind not in readers:
        raise Unreadable(f"holds a tensor subclass {name} that is not known")
    try:
        made = readers[kind](dtype, shape, state)
        # Fails for what is no dtype or no shape.
        torch.empty(made.shape, dtype=made.dtype, device="meta")
        if 0 <= made.rank < made.ranks <= _RANKS:
            return made
    except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError):
        pass
    raise Unreadable(f"holds a {name} of an unknown form")


def _sharded_tensor(dtype: torch.dtype, shape: tuple[int, ...], state: Any) -> Parts:
    """`ShardedTensor.__getstate__`: local shards, metadata, process group, spec, rrefs."""
    local, metadata, group = state[:3]
    _, rank, _, ranks = group.args or [group[name] for name in (
        "local_rank", "global_rank", "local_world_size", "global_world_size",
    )]  # fmt: skip
    parts = []
    for shard in local:
        at = shard["metadata"]
        parts.append(_held(shard["tensor"], tuple(at["shard_offsets"]), tuple(at["shard_sizes"])))
    return Parts(dtype, tuple(metadata["size"]), tuple(parts), rank, ranks)


def _dtensor(dtype: torch.dtype, shape: tuple[int, ...], state: Any) -> Parts:
    """The attributes of a DTensor: its local tensor, and mesh and placements in its spec."""
    attributes = state[1] if isinstance(state, tuple) else state
    spec = attributes["_spec"]
    sizes, coordinate = _mesh_sizes(spec["mesh"]), spec["mesh"].get("_coordinate_on_dim")
    dims = []
    for placement in spec["placements"]:
        if not isinstance(placement, (note("Shard"), note("Replicate"))):
            kind = type(placement).__name__
            raise Unreadable(f"holds a DTensor whose placement is {kind}: not supported")
        dims.append(placement["dim"] if isinstance(placement, note("Shard")) else None)
    if coordinate is None:
        return Parts(dtype, shape, (), 0, math.prod(sizes))
    part = _held(attributes["_local_tensor"], *chunk_of(shape, sizes, coordinate, dims))
    rank = 0
    for size, index in zip(sizes, coordinate, strict=False):
        rank = rank * size + index
    return Parts(dtype, shape, (part,), rank, math.prod(sizes))


def _held(tensor: torch.Tensor, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Part:
    if not isinstance(tensor, torch.Tensor) or tuple(tensor.shape) != sizes:
        raise Unreadable("holds a shard whose tensor does not have the size of its place")
    return Part((offsets, sizes), lambda: tensor)


def _mesh_sizes(mesh: Note) -> tuple[int, ...]:
    """A mesh's shape: of its layout in later releases of torch, of the tensor of its ranks in earlier ones."""
    if (layout := mesh.get("_layout")) is not None:
        axes = layout.get("axes")
        shape = layout["shape"] if axes is None else tuple(axis["shape"] for axis in axes)
        return tuple(map(_product, shape)) if isinstance(shape, tuple) else (shape,)
    tensor = mesh.get("mesh", mesh.get("_mesh"))
    if isinstance(tensor, torch.Tensor):
        return tuple(tensor.shape)
    raise Unreadable("holds a DTensor on a mesh of an unknown form")


def _product(numbers: Any) -> int:
    """Of a layout's numbers, which may be nested tuples."""
    return numbers if isinstance(numbers, int) else math.prod(map(_product, numbers))


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
