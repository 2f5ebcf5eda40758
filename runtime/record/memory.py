"""Peak memory of this process."""

from __future__ import annotations

import sys
from typing import Any

import torch


def peak_bytes() -> int:
    """Of CUDA's allocator where the program used it, else the resident set; 0 if unknown."""
    cuda: Any = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        return int(cuda.max_memory_allocated())
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
