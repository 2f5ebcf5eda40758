"""Where a process is when it does not end: it writes its stack on a signal, even from inside a
collective.
"""

from __future__ import annotations

import faulthandler
import os
import signal


def install(folder: str) -> None:
    """Name this process in `folder`, and have it write its stack there on SIGUSR2 unless the
    program uses that signal.
    """
    path = os.path.join(folder, f"alive-{os.getpid()}")
    file = open(f"{path}.stack", "w", encoding="utf-8")  # noqa: SIM115 (open as long as the process lives)
    if hasattr(signal, "SIGUSR2") and signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
        faulthandler.register(signal.SIGUSR2, file=file, all_threads=False)
    with open(path, "w", encoding="utf-8") as rank:
        rank.write(os.environ.get("RANK", ""))
