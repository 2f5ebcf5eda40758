"""The stack of a process that does not end, which it writes on a signal."""

from __future__ import annotations

import faulthandler
import functools
import os
import signal


def install(folder: str) -> None:
    """Name this process and those that it forks in `folder`, where they write their stacks on SIGUSR2, if that is free."""
    _install(folder)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=functools.partial(_install, folder))


def _install(folder: str) -> None:
    path = os.path.join(folder, f"alive-{os.getpid()}")
    file = open(f"{path}.stack", "w", encoding="utf-8")  # noqa: SIM115 (open to the end)
    number = getattr(signal, "SIGUSR2", None)
    if number is not None and signal.getsignal(number) is signal.SIG_DFL:
        faulthandler.register(number, file=file, all_threads=False)
    with open(path, "w", encoding="utf-8") as rank:
        rank.write(os.environ.get("RANK", ""))
