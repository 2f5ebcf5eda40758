"""DataLoader workers, as many as the user of `verify` asks for.

Each is a process that imports torch again: for a short run that takes longer than the run, most of
all below `mp.spawn`.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from . import imports

_WORKERS_ONLY = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


def install(count: int) -> None:
    """Give every DataLoader so many workers; with 0 it loads in the process itself."""

    def replace(module: Any) -> None:
        original = module.DataLoader.__init__
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(*args, **kwargs)
            bound.arguments["num_workers"] = count
            if count == 0:
                for name in _WORKERS_ONLY:
                    bound.arguments.pop(name, None)
            original(*bound.args, **bound.kwargs)

        module.DataLoader.__init__ = init

    imports.after("torch.utils.data.dataloader", replace)
