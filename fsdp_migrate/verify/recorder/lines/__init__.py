"""What the program's own lines do: after each of them the local variables that changed, in a short form.

Two runs of one program are compared by it line by line (`fsdp_migrate/verify/where`). Only code in the copied folder is
followed, in the main thread of each process. From Python 3.12 on `sys.monitoring` reports the lines, which costs other
code nothing; before that `sys.settrace`.

Nothing here changes what the program computes: values are read without gradients, outside of its dispatch modes, and a
value that cannot be read is written as what it is.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from .. import imports
from ..imports import Copies
from ..settings import SETTINGS
from .follow import Follower
from .forms import Forms
from .journal import Journal

LINES = 100_000
"""At most so many lines of a process are written."""

SECONDS = 120.0
"""At most so long a process is followed, from its first line on, in seconds of its processor."""


def install(folder: str, copies: Copies, steps: int) -> None:
    """Follow this process, and those that it forks, until an optimizer has taken more than so many steps."""
    journal = Journal(folder, LINES, SECONDS)
    forms = Forms(copies)
    follower = Follower(copies, journal, forms)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=journal.reopen)

    def begin(_: Any) -> None:
        # Importing torch runs more Python than many a program: lines are followed from here on.
        if sys.version_info >= (3, 12):
            from .monitoring import follow
        else:
            from .tracing import follow
        journal.stop = follow(follower)

    imports.after("torch", begin)
    if SETTINGS["device"] == "cpu":
        imports.after("torch", _fill_new_memory)
    imports.after(
        "torch.optim.optimizer", lambda module: _count_steps(module, journal, forms, steps)
    )


def _fill_new_memory(torch: Any) -> None:
    """Have `torch.empty` give the same values in both programs: else they are what the memory held before.

    On a device this would choose other kernels.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)


def _count_steps(module: Any, journal: Journal, forms: Forms, limit: int) -> None:
    """Have a journal end once an optimizer begins a step beyond the limit; a step within its own step is the same one."""
    counts: dict[int, int] = {}
    inside: list[int] = []

    def before(optimizer: Any, *_: Any) -> None:
        if inside:
            return
        inside.append(id(optimizer))
        if not counts:
            with contextlib.suppress(Exception):
                forms.begin()
        counts[id(optimizer)] = counts.get(id(optimizer), 0) + 1
        if counts[id(optimizer)] > limit:
            journal.end()

    def after(*_: Any) -> None:
        inside.clear()

    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)
