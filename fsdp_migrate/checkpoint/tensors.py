"""Tensors that stay on disk until they are asked for, one at a time."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from fsdp_migrate.checkpoint.errors import Unreadable

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""The offsets and the sizes of a part of a tensor."""


class Lazy(ABC):
    """A whole tensor on disk. Two places of a checkpoint share it if they hold the same object."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.numel * self.dtype.itemsize

    @abstractmethod
    def load(self) -> torch.Tensor:
        """The tensor, contiguous, on the CPU."""

    def copy(self) -> Lazy:
        """The same tensor as an object of its own."""
        twin: Lazy = dataclasses.replace(cast(Any, self))
        return twin

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("the pickle changes a tensor")


@dataclass(eq=False)
class Storage:
    """Bytes of a file that one or more tensors are views of. `start` is known once the file's index is read."""

    file: Path
    nbytes: int
    start: int = -1


@dataclass(frozen=True, eq=False)
class Stored(Lazy):
    """A view of a storage; offset and strides count elements."""

    storage: Storage
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def __post_init__(self) -> None:
        numbers = (*self.shape, *self.stride, self.offset)
        known = isinstance(self.storage, Storage) and len(self.shape) == len(self.stride)
        if not known or any(type(n) is not int or n < 0 for n in numbers):
            raise Unreadable("a tensor has an impossible shape")
        if (self.offset + self._extent) * self.dtype.itemsize > self.storage.nbytes:
            raise Unreadable("a tensor reaches beyond its storage")

    @property
    def _extent(self) -> int:
        """Elements from the first to the last, with those that strides pass over."""
        if not self.numel:
            return 0
        return 1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))

    def load(self) -> torch.Tensor:
        """Read what lies between the first and the last element, and no more of the storage."""
        if not self.numel:
            return torch.empty(self.shape, dtype=self.dtype)
        data = bytearray(self._extent * self.dtype.itemsize)
        try:
            with self.storage.file.open("rb") as file:
                file.seek(self.storage.start + self.offset * self.dtype.itemsize)
                count = file.readinto(data)
        except OSError as error:
            raise Unreadable(f"cannot be read: {error.strerror}", self.storage.file) from None
        if count != len(data):
            raise Unreadable("is cut off: a tensor's bytes are missing", self.storage.file)
        flat = torch.frombuffer(data, dtype=self.dtype)
        return flat.as_strided(self.shape, self.stride).contiguous()


@dataclass(frozen=True, eq=False)
class Joined(Lazy):
    """A tensor in parts, each with its offsets in the whole."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: tuple[tuple[tuple[int, ...], Lazy], ...]

    def load(self) -> torch.Tensor:
        """Read part after part into the whole."""
        if len(self.parts) == 1 and self.parts[0][1].shape == self.shape:
            return self.parts[0][1].load()
        whole = torch.empty(self.shape, dtype=self.dtype)
        for offsets, part in self.parts:
            place = tuple(slice(o, o + n) for o, n in zip(offsets, part.shape, strict=True))
            whole[place] = part.load()
        return whole


@dataclass(frozen=True, eq=False)
class Deferred(Lazy):
    """A tensor whose file is opened only when it is loaded."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    find: Callable[[], object]

    def load(self) -> torch.Tensor:
        """The tensor, if it is what the index of the checkpoint promises."""
        found = self.find()
        if not isinstance(found, Lazy):
            raise Unreadable("an entry of the index is no tensor")
        if found.dtype != self.dtype or found.shape != self.shape:
            raise Unreadable("a tensor's shape or dtype is not that of the index")
        return found.load()


def covers(shape: Sequence[int], boxes: Iterable[Box]) -> bool:
    """Whether the boxes lie in a tensor of that shape, fill it, and do not overlap."""
    filled = [box for box in boxes if math.prod(box[1])]
    if any(len(offsets) != len(shape) or len(sizes) != len(shape) for offsets, sizes in filled):
        return False
    for offsets, sizes in filled:
        for o, n, whole in zip(offsets, sizes, shape, strict=True):
            if o < 0 or n < 0 or o + n > whole:
                return False
    if sum(math.prod(sizes) for _, sizes in filled) != math.prod(shape):
        return False
    cut = [d for d, whole in enumerate(shape) if any(sizes[d] != whole for _, sizes in filled)]
    if len(cut) <= 1:  # the common case, in one pass: a thousand ranks have a thousand boxes
        ends = sorted((o[d], o[d] + n[d]) for d in cut for o, n in filled)
        return all(a[1] <= b[0] for a, b in itertools.pairwise(ends))
    return not any(
        all(
            max(a[0][d], b[0][d]) < min(a[0][d] + a[1][d], b[0][d] + b[1][d])
            for d in range(len(shape))
        )
        for i, a in enumerate(filled)
        for b in filled[:i]
    )
