"""Digests of tensors: noted when a tensor is read from the source, compared when it is read back."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable

import torch

from fsdp_migrate.checkpoint.tensors import Lazy

Progress = Callable[[int, int, str], None]
"""Called with steps done, steps in all, and what is being done."""


class Fingerprints:
    """The digests of one conversion; each note and each comparison is a step of its progress."""

    def __init__(self, steps: int = 0, progress: Progress | None = None) -> None:
        self._digests: dict[int, str] = {}
        self._steps, self._done, self._progress = steps, 0, progress

    def note(self, source: Lazy, tensor: torch.Tensor) -> None:
        """Keep the digest of what `source` was loaded to."""
        self._digests[id(source)] = digest(tensor)
        self._step("writing")

    def same(self, source: Lazy, tensor: torch.Tensor) -> bool:
        """Whether the tensor has the bits that `source` had."""
        self._step("reading back")
        return self._digests.get(id(source)) == digest(tensor)

    def _step(self, word: str) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._steps, word)


def digest(tensor: torch.Tensor) -> str:
    """Of the tensor's bytes, which tell every bit apart, NaN and -0 as well."""
    tensor = tensor.contiguous()
    if not tensor.numel():
        return ""
    data = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    return hashlib.blake2b(data, digest_size=16).hexdigest()
