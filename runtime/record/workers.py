"""DataLoader workers, as many as the user of `verify` asks for.

Each is a process that imports torch again: for a short run that takes longer than the run, most of
all below `mp.spawn`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from . import imports
from .patch import around

_WORKERS_ONLY = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


def install(count: int) -> None:
    """Give every DataLoader so many workers; with 0 it loads in the process itself."""

    def init(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        bound = inspect.signature(original).bind(*args, **kwargs)
        bound.arguments["num_workers"] = count
        if count == 0:
            for name in _WORKERS_ONLY:
                bound.arguments.pop(name, None)
        original(*bound.args, **bound.kwargs)

    imports.after(
        "torch.utils.data.dataloader", lambda module: around(module.DataLoader, "__init__", init)
    )
