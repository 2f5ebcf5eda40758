"""Lines by `sys.monitoring`, from Python 3.12 on: code that is not the program's runs at its full speed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from . import tracing
from .follow import Follower

_TOOLS = (4, 3, 5, 2, 1, 0)
"""Numbers of tools, those without a meaning of their own first."""


def follow(follower: Follower) -> Callable[[], None]:
    """Report what this process runs from now on; returns what ends it."""
    monitoring: Any = vars(sys)["monitoring"]
    for tool in _TOOLS:
        if monitoring.get_tool(tool) is None:
            return _Monitor(monitoring, tool, follower).start()
    return tracing.follow(follower)


class _Monitor:
    """Takes the interpreter's events. Each callback is called by the frame that it is about."""

    def __init__(self, monitoring: Any, tool: int, follower: Follower) -> None:
        self._monitoring = monitoring
        self._tool = tool
        self._follower = follower
        events = monitoring.events
        # These are asked for in the program's own code only.
        self._inner = {
            events.LINE: self._line,
            events.JUMP: self._jumps,
            events.PY_RESUME: self._resumes,
            events.PY_RETURN: self._leaves,
            events.PY_YIELD: self._leaves,
        }
        self._outer = {events.PY_START: self._begins, events.PY_UNWIND: self._unwinds}

    def start(self) -> Callable[[], None]:
        """Begin; returns what ends it."""
        monitoring = self._monitoring
        tool = self._tool
        monitoring.use_tool_id(tool, "fsdp-migrate verify")
        for event, callback in {**self._inner, **self._outer}.items():
            monitoring.register_callback(tool, event, callback)
        monitoring.set_events(tool, sum(self._outer))
        for frame in tracing.running(self._follower):
            monitoring.set_local_events(tool, frame.f_code, sum(self._inner))
            self._follower.enter(frame, frame.f_lineno)
        return self._stop

    def _stop(self) -> None:
        if self._monitoring.get_tool(self._tool) is not None:
            self._monitoring.set_events(self._tool, 0)
            for event in {**self._inner, **self._outer}:
                self._monitoring.register_callback(self._tool, event, None)
            self._monitoring.free_tool_id(self._tool)

    def _begins(self, code: CodeType, _: int) -> Any:
        if not self._follower.owns(code):
            return self._monitoring.DISABLE
        self._monitoring.set_local_events(self._tool, code, sum(self._inner))
        self._follower.enter(sys._getframe(1))
        return None

    def _line(self, _: CodeType, number: int) -> None:
        self._follower.line(sys._getframe(1), number)

    def _jumps(self, _: CodeType, source: int, target: int) -> None:
        if target < source:
            self._follower.jump(sys._getframe(1))

    def _resumes(self, _: CodeType, __: int) -> None:
        self._follower.enter(sys._getframe(1))

    def _leaves(self, _: CodeType, __: int, value: Any) -> None:
        self._follower.leave(sys._getframe(1), value)

    def _unwinds(self, code: CodeType, _: int, __: BaseException) -> None:
        if self._follower.owns(code):
            self._follower.leave(sys._getframe(1), None, raised=True)
