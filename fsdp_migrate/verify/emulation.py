"""Whether a program needs CUDA, and what to say where CUDA cannot be emulated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fsdp_migrate.verify.errors import ProgramFailed

_CUDA = re.compile(rb"cuda|nccl", re.IGNORECASE)
_ASKS = re.compile(rb"cuda\.is_available|accelerator\.is_available|cuda\.device_count")

_NO_CUDA = re.compile(
    r"not compiled with CUDA|no NVIDIA driver|No CUDA GPUs|torch\.cuda|nccl|invalid device",
    re.IGNORECASE,
)


def needs_cuda(root: Path) -> bool:
    """Whether a program's files mention CUDA or NCCL; one that asks if there is a device may run without."""
    texts = [*_texts(root)]
    return any(map(_CUDA.search, texts)) and not any(map(_ASKS.search, texts))


def explain(failure: ProgramFailed, emulated: bool) -> ProgramFailed:
    """The failure, with what CUDA, or its emulation, may have to do with it."""
    if emulated:
        failure.reason += " (CUDA was emulated: no kernels, graphs or extensions of a device)"
    elif _NO_CUDA.search(failure.reason):
        failure.reason += " (there is no CUDA here: --emulate runs it on the CPU)"
    return failure


def _texts(root: Path) -> Iterator[bytes]:
    for path in sorted(root.rglob("*.py")):
        try:
            yield path.read_bytes()
        except OSError:
            continue
