"""How a recorded process leaves.

An FSDP1 program on gloo now and then aborts while the interpreter shuts down: a C++ thread asks for the interpreter's
lock after it is gone, and torchrun reports a failure that is none. So a process that ended well leaves before that,
from the last of its exit handlers. What ended badly takes the usual way out and keeps its exit code.

Python does not tell an exit handler how the program ended. An exception that nobody caught stays in `sys.last_value`,
whatever hook the program has for it. The others are `SystemExit`, raised by `sys.exit` or by name: both are replaced by
a subclass that remembers a status that is not zero.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from .patch import Method, around

# The recorder replaces it for the program, to write its record first.
_exit = os._exit

_HERE = os.path.dirname(os.path.abspath(__file__))


class Departure:
    """What is known of the way in which this process ends.

    Attributes:
        failure: the traceback of an exception that nobody caught, of the main thread or of one that trains.
        status: the last exit status other than zero that was asked for, 1 for an exception.
        code: the exit status that the process certainly has; None where Python does not tell.
        over: whether the program is at its end, and its exit handlers run: they cannot change its status.
        before: called when all other exit handlers ran; returns whether the process may leave at once if it ended
            well.
        together: waits for the other ranks: one that still reads from this one would lose its connection.
        in_thread: called with an exception that nobody caught in another thread than the main one.
    """

    def __init__(self) -> None:
        self.failure = ""
        self.status = 0
        self.code: int | None = None
        self.over = False
        self.before: Callable[[], bool] = lambda: False
        self.together: Callable[[], None] = lambda: None
        self.in_thread: Callable[[BaseException], None] = lambda error: None

    @property
    def well(self) -> bool:
        """Whether the process ends with status 0, as far as is known."""
        return not self.failure and not self.status

    def failed(self, error: BaseException) -> None:
        """Note an exception that nobody caught, without the frames of the recorder."""
        part = whole = traceback.TracebackException.from_exception(error)
        while part is not None:
            kept = [frame for frame in part.stack if not frame.filename.startswith(_HERE)]
            part.stack = traceback.StackSummary.from_list(kept)
            part = part.__cause__ or part.__context__  # type: ignore[assignment]
        self.failure = "".join(whole.format())
        self.status = self.status or 1

    def leaves(self, status: int | None = None) -> None:
        """The process leaves now: with this status, or where that is None with one that Python knows."""
        if status is not None:
            self.status = self.code = status
        if (error := getattr(sys, "last_value", None)) is not None and _came_to_the_top(error):
            self.failed(error)


def _came_to_the_top(error: BaseException) -> bool:
    """Whether the interpreter had this exception from the program, and not a tool that caught it, as pytest does."""
    trace = error.__traceback__
    return trace is None or trace.tb_frame.f_globals.get("__name__") in ("__main__", "runpy")


def install() -> Departure:
    """Watch the end of this process."""
    departure = Departure()

    def leave() -> None:
        departure.leaves()
        if departure.before() and departure.well:
            departure.together()
            sys.stdout.flush()
            sys.stderr.flush()
            _exit(0)

    _watch_exits(departure)
    around(threading, "_make_invoke_excepthook", functools.partial(_in_thread, departure))
    atexit.register(leave)
    return departure


def _in_thread(departure: Departure, make: Method) -> Method:
    """What a thread calls with an exception that nobody caught in it: first the recorder, then the program's hook."""
    hook = make()

    def invoke(thread: threading.Thread) -> None:
        if not isinstance(error := sys.exc_info()[1], SystemExit) and error is not None:
            departure.in_thread(error)
        hook(thread)

    return invoke


class _Exit(SystemExit):
    """Python's own, which remembers the status."""

    departure: Departure

    def __new__(cls, *args: Any) -> _Exit:
        main = threading.current_thread() is threading.main_thread()
        if args and args[0] not in (None, 0) and main and not cls.departure.over:
            if isinstance(args[0], int):
                cls.departure.status = args[0]
            else:
                cls.departure.status = 1
        return super().__new__(cls, *args)


def _exit_by_name(status: object = None, /) -> NoReturn:
    raise _Exit(status)


def _watch_exits(departure: Departure) -> None:
    _Exit.departure = departure
    _Exit.__module__ = "builtins"
    _Exit.__name__ = "SystemExit"
    _Exit.__qualname__ = "SystemExit"
    _exit_by_name.__name__ = "exit"
    _exit_by_name.__doc__ = sys.exit.__doc__
    vars(builtins)["SystemExit"] = _Exit
    vars(sys)["exit"] = _exit_by_name

    def over() -> None:
        departure.over = True

    # Python calls it before the exit handlers.
    getattr(threading, "_register_atexit", lambda function: None)(over)
