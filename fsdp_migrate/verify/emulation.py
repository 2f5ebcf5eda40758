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
_MISSING = re.compile(
    r"No module named '(flash_attn\w*|xformers|apex|bitsandbytes|transformer_engine|triton|amp_C"
    r"|fused_\w+|deepspeed)"
)
_REFUSED = re.compile(r"NotEmulated: (.+)")
_TRITON = re.compile(r"active drivers? \(|triton\.runtime|triton\.compiler")
_COMPILER = re.compile(r"CUDA_HOME environment variable is not set")


def wants_cuda(root: Path) -> bool:
    """Whether a program's files mention CUDA or NCCL at all."""
    return any(_CUDA.search(text) for text in _texts(root))


def asks_first(root: Path) -> bool:
    """Whether a program asks if there is a device: then it may run without one."""
    return any(_ASKS.search(text) for text in _texts(root))


def explain(failure: ProgramFailed, emulated: bool) -> ProgramFailed:
    """The failure, with the reason if it is about CUDA."""
    text = f"{failure.reason}\n{failure.details}"
    reason = ""
    if emulated and (refused := _REFUSED.search(text)):
        reason = refused[1]
    elif emulated and (missing := _MISSING.search(text)):
        reason = f"{missing[1]} cannot be emulated on the CPU: its kernels are CUDA's own"
    elif emulated and _TRITON.search(text):
        reason = "a Triton kernel cannot be emulated on the CPU: it is compiled for a device"
    elif emulated and _COMPILER.search(text):
        reason = "an extension with CUDA kernels cannot be emulated on the CPU"
    elif emulated and "AssertionError" in failure.reason:
        reason = f"{failure.reason} (CUDA was emulated)"
    elif not emulated and _NO_CUDA.search(failure.reason):
        reason = f"{failure.reason} (there is no CUDA here: --emulate runs it on the CPU)"
    failure.reason = reason or failure.reason
    return failure


def _texts(root: Path) -> Iterator[bytes]:
    for path in sorted(root.rglob("*.py")):
        try:
            yield path.read_bytes()
        except OSError:
            continue
