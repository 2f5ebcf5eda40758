"""How a recorded process leaves.

An FSDP1 program on gloo now and then aborts while the interpreter shuts down: a C++ thread asks for the interpreter's
lock after it is gone, and torchrun reports a failure that is none. So a process that ended well leaves before that,
from the last of its exit handlers. What ended badly takes the usual way out and keeps its exit code.

Python does not tell an exit handler how the program ended. Uncaught exceptions are seen by `sys.excepthook`, the
others are `SystemExit`, raised by `sys.exit` or by name: both are replaced by a subclass that remembers a status that
is not zero.
"""

from __future__ import annotations

import atexit
import builtins
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

# The recorder replaces it for the program, to write its record first.
_exit = os._exit

_MAIN = threading.main_thread()
_HERE = os.path.dirname(os.path.abspath(__file__))


class Departure:
    """What is known of the way in which this process ends.

    Attributes:
        status: the last exit status other than zero that was asked for, 1 for an exception.
        code: the exit status that the process certainly has; None where Python does not tell.
        before: called when all other exit handlers ran; returns whether the process may leave at once if it ended
            well.
        together: waits for the other ranks: one that still reads from this one would lose its connection.
    """

    def __init__(self) -> None:
        self.failure = ""
        self.status = 0
        self.code: int | None = None
        self.before: Callable[[], bool] = lambda: False
        self.together: Callable[[], None] = lambda: None

    @property
    def well(self) -> bool:
        """Whether the process ends with status 0, as far as is known."""
        return not self.failure and not self.status

    def failed(self, error: BaseException) -> None:
        """Note the exception that ends this process, without the frames of the recorder."""
        part = whole = traceback.TracebackException.from_exception(error)
        while part is not None:
            kept = [frame for frame in part.stack if not frame.filename.startswith(_HERE)]
            part.stack = traceback.StackSummary.from_list(kept)
            part = part.__cause__ or part.__context__  # type: ignore[assignment]
        self.failure, self.status = "".join(whole.format()), 1


def install() -> Departure:
    """Watch the end of this process."""
    departure, hook = Departure(), sys.excepthook

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        departure.failed(error)
        hook(kind, error, trace)

    def leave() -> None:
        if departure.before() and departure.well:
            departure.together()
            sys.stdout.flush()
            sys.stderr.flush()
            _exit(0)

    sys.excepthook = excepthook
    _watch_exits(departure)
    atexit.register(leave)
    return departure


class _Exit(SystemExit):
    """Python's own, which remembers the status."""

    departure: Departure

    def __new__(cls, *args: Any) -> _Exit:
        if args and args[0] not in (None, 0) and threading.current_thread() is _MAIN:
            cls.departure.status = args[0] if isinstance(args[0], int) else 1
        return super().__new__(cls, *args)


def _exit_by_name(status: object = None, /) -> NoReturn:
    raise _Exit(status)


def _watch_exits(departure: Departure) -> None:
    _Exit.departure = departure
    _Exit.__module__, _Exit.__name__, _Exit.__qualname__ = "builtins", "SystemExit", "SystemExit"
    _exit_by_name.__name__, _exit_by_name.__doc__ = "exit", sys.exit.__doc__
    vars(builtins)["SystemExit"] = _Exit
    vars(sys)["exit"] = _exit_by_name
