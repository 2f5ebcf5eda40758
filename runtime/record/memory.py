"""Peak memory of this process."""

from __future__ import annotations

import sys

import torch


def peak_bytes() -> int:
    """CUDA's allocator where the program used CUDA, else the resident set; 0 where neither can be
    read.
    """
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
