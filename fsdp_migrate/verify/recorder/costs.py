"""What a run costs: how many collectives of each kind, of how many bytes, and the peak memory of this process."""

import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from .patch import around

_KINDS = {
    "all_reduce": "all_reduce all_reduce_coalesced",
    "all_gather": (
        "all_gather all_gather_coalesced all_gather_into_tensor all_gather_single _all_gather_base"
    ),
    "reduce_scatter": (
        "reduce_scatter reduce_scatter_tensor reduce_scatter_single _reduce_scatter_base"
    ),
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "all_to_all": "all_to_all all_to_all_single",
    "barrier": "barrier monitored_barrier",
    "objects": "all_gather_object gather_object broadcast_object_list scatter_object_list",
}


def install(distributed: Any) -> tuple[Counter[str], Counter[str]]:
    """Count calls of `torch.distributed`'s functions, and the bytes of each one's largest argument: of the whole tensor."""
    counts = Counter[str]()
    volume = Counter[str]()
    inside = threading.local()

    def counted(kind: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # One function may be written with another: only what the program called counts.
        if getattr(inside, "call", False):
            return function(*args, **kwargs)
        counts[kind] += 1
        if kind != "objects":
            volume[kind] += max(map(_bytes, (*args, *kwargs.values())), default=0)
        inside.call = True
        try:
            return function(*args, **kwargs)
        finally:
            inside.call = False

    for kind, names in _KINDS.items():
        around(distributed, names, functools.partial(counted, kind))
    return counts, volume


def _bytes(argument: Any) -> int:
    if isinstance(argument, torch.Tensor):
        return argument.numel() * argument.element_size()
    if isinstance(argument, (list, tuple)):
        return sum(map(_bytes, argument))
    return 0


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
    if sys.platform == "darwin":
        return peak
    return peak * 1024
