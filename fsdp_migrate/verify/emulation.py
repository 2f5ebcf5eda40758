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
_REFUSED = {
    re.compile(
        r"dummy base class CUDAGraph"
    ): "torch.cuda.CUDAGraph: it records kernels of a device",
    re.compile(r"'?ProcessGroupNCCL"): "ProcessGroupNCCL: gloo has no such options",
    re.compile(
        r"active drivers? \(|triton\.runtime|triton\.compiler"
    ): "a Triton kernel: it is compiled for a device",
    re.compile(r"CUDA_HOME environment variable is not set"): "an extension with CUDA kernels",
}
"""What cannot be emulated, by how torch refuses it."""


def wants_cuda(root: Path) -> bool:
    """Whether a program's files mention CUDA or NCCL at all."""
    return any(_CUDA.search(text) for text in _texts(root))


def asks_first(root: Path) -> bool:
    """Whether a program asks if there is a device: then it may run without one."""
    return any(_ASKS.search(text) for text in _texts(root))


def explain(failure: ProgramFailed, emulated: bool) -> ProgramFailed:
    """The failure, with the reason if it is about CUDA."""
    text = f"{failure.reason}\n{failure.details}"
    if not emulated and _NO_CUDA.search(failure.reason):
        failure.reason += " (there is no CUDA here: --emulate runs it on the CPU)"
    elif emulated and (missing := _MISSING.search(text)):
        failure.reason = f"cannot be emulated on the CPU: {missing[1]}: its kernels are CUDA's own"
    elif emulated and (why := next((w for p, w in _REFUSED.items() if p.search(text)), "")):
        failure.reason = f"cannot be emulated on the CPU: {why}"
    elif emulated and "AssertionError" in failure.reason:
        failure.reason += " (CUDA was emulated)"
    return failure


def _texts(root: Path) -> Iterator[bytes]:
    for path in sorted(root.rglob("*.py")):
        try:
            yield path.read_bytes()
        except OSError:
            continue
