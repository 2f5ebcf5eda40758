"""Ctrl-C and SIGTERM: the processes are ended and the files removed, whenever the signal comes."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """The signal with this number asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.status = 128 + number


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Both signals raise `Interrupted` in here, in the main thread."""

    def handle(number: int, _: FrameType | None) -> None:
        raise Interrupted(number)

    with _handled(handle):
        yield


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """A signal that comes in here is raised at the end: cleaning up is not cut short."""
    came: list[int] = []
    with _handled(lambda number, _: came.append(number)):
        yield
    if came:
        signal.raise_signal(came[0])


@contextlib.contextmanager
def _handled(handle: object) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, handle)) for number in _SIGNALS]  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
