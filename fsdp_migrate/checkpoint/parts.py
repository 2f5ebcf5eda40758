"""Tensors whose parts lie in several places: the chunks of DCP, and the shards that ranks have pickled."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""The offsets and the sizes of a part of a tensor."""


class Part(NamedTuple):
    """A part with its place in the whole; `load` reads it."""

    box: Box
    load: Callable[[], torch.Tensor]


class Parts(torch.Tensor):
    """A tensor with a shape and a dtype, whose values are in its `parts`.

    From a rank's file they are those of `rank`, until `whole` has put those of all `ranks` together.
    """

    parts: tuple[Part, ...] = ()
    rank: int = 0
    ranks: int = 1

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise TypeError(f"{func} of a tensor in parts")

    def load(self) -> torch.Tensor:
        """The whole tensor, put together in memory if it is not one part."""
        if len(self.parts) == 1 and self.parts[0].box[1] == self.shape:
            return self.parts[0].load()
        return self.fill(torch.empty(self.shape, dtype=self.dtype))

    def fill(self, tensor: torch.Tensor) -> torch.Tensor:
        """Write the values to a tensor of the same shape."""
        for (offsets, sizes), load in self.parts:
            tensor[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))] = load()
        return tensor


def in_parts(
    shape: Sequence[int], dtype: torch.dtype, parts: Iterable[Part], rank: int = 0, ranks: int = 1
) -> Parts:
    """A tensor that lies in these parts."""
    made: Parts = torch.Tensor._make_wrapper_subclass(Parts, tuple(shape), dtype=dtype)
    made.parts = tuple(parts)
    made.rank = rank
    made.ranks = ranks
    return made


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
        spans = [(o[d], o[d] + n[d]) for d in cut for o, n in filled]
        return all(a[1] <= b[0] for a, b in itertools.pairwise(sorted(spans)))
    return not any(itertools.starmap(_overlap, itertools.combinations(filled, 2)))


def _overlap(one: Box, other: Box) -> bool:
    """Whether two boxes overlap: they do in every dimension."""
    for start, length, other_start, other_length in zip(*one, *other, strict=True):
        if max(start, other_start) >= min(start + length, other_start + other_length):
            return False
    return True
