"""Lines by `sys.settrace`, before Python 3.12."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from .follow import Follower


def follow(follower: Follower) -> Callable[[], None]:
    """Report what this thread runs from now on; returns what ends it."""

    def local(frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":
            follower.line(frame, frame.f_lineno)
        elif event == "return":
            follower.leave(frame, value, raised=_raises(frame))
        return local

    def entered(frame: FrameType, event: str, _: Any) -> Any:
        if event != "call" or not follower.owns(frame.f_code):
            return None
        follower.enter(frame)
        return local

    sys.settrace(entered)
    for frame in running(follower):
        follower.enter(frame, frame.f_lineno)
        frame.f_trace = local
    return lambda: sys.settrace(None)


def _raises(frame: FrameType) -> bool:
    """Whether a frame ends by an exception: no instruction of a return is its last."""
    name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return not name.startswith(("RETURN", "YIELD"))


def running(follower: Follower) -> list[FrameType]:
    """The program's frames that run already, the outer ones first."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if follower.owns(frame.f_code):
            found.append(frame)
        frame = frame.f_back
    return found[::-1]
