"""A limit to the time that one file may take: it is named, and the others follow."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

SECONDS = 60.0
BYTES_A_SECOND = 10_000  # the slowest file known takes a fifth of that time


class TookTooLong(BaseException):
    """A file took longer than one of its size should; no `except Exception` on the way may take this for its own."""


@contextlib.contextmanager
def limited(size: int) -> Iterator[None]:
    """Limits the processor time of a block that works on a file of some size; raises TookTooLong.

    Nothing is limited outside of the main thread, and where the system has no such timer.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or not hasattr(signal, "setitimer"):
        yield
        return

    seconds = SECONDS + size / BYTES_A_SECOND

    def stop(*_: object) -> None:
        raise TookTooLong(f"not done after {seconds:.0f} s, please report it")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
