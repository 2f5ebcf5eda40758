"""One program's processes: start them, wait for them, and leave none behind, also on Ctrl-C and SIGTERM."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_GRACE = 3.0
"""Seconds between the request to end and the end."""

_PAUSE = 0.5
"""Seconds between two looks at how much was printed."""

OUTPUT = 256 << 20
"""Bytes that a program may print: more is an endless loop, and would fill the disk."""


@dataclass(frozen=True)
class Outcome:
    """How a program ended: by itself, or because its time was over, it `flooded` its output or was `stopped`.

    `stacks` are then for each process its rank, if it had one, and its stack.
    """

    status: int
    seconds: float
    timed_out: bool = False
    stacks: tuple[tuple[str, str], ...] = ()
    flooded: bool = False
    stopped: bool = False


def run(
    command: list[str],
    folder: Path,
    environment: dict[str, str],
    output: Path,
    timeout: float,
    look: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run a program to its end, or to the end of its time; what it prints goes to the files `output` and `errors` beside it.

    `look` is called now and then, and says whether the program shall end.
    """
    records = Path(environment["FSDP_MIGRATE_RECORD"])
    start = time.monotonic()
    process = None

    def ended(status: int = -1, **how: Any) -> Outcome:
        return Outcome(status, time.monotonic() - start, **how)

    with output.open("wb") as file, output.with_name("errors").open("wb") as errors:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=errors,
                start_new_session=True,
            )
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return ended(process.wait(_PAUSE))
                if _over(start + timeout):
                    return Outcome(-1, timeout, timed_out=True, stacks=_stacks(records))
                if look():
                    return ended(stopped=True)
                printed = [output, Path(errors.name), *output.parent.glob("logs/**/*.log")]
                if sum(path.stat().st_size for path in printed) > OUTPUT:
                    return ended(flooded=True)
        finally:
            with held_back():
                _end(process, records)


def _over(end: float) -> bool:
    return time.monotonic() > end


def _end(process: subprocess.Popen[bytes] | None, records: Path) -> None:
    """End the launcher and whatever it leaves, in whichever group or session."""
    if process is not None and process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    # What is forked meanwhile is found the next time.
    while left := _started(records):
        for pid in left:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.01)
    if process is not None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _started(records: Path) -> list[int]:
    """Every process that has the run's environment; without /proc those that were recorded and live."""
    if not Path("/proc/self/environ").exists():
        return [pid for pid in _recorded(records) if _signal(pid, 0)]
    mark = b"FSDP_MIGRATE_RECORD=" + os.fsencode(records) + b"\0"
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def _stacks(records: Path) -> tuple[tuple[str, str], ...]:
    started = set(_started(records))  # another process may have an old number
    alive = [pid for pid in _recorded(records) if pid in started]
    if hasattr(signal, "SIGUSR2"):
        for pid in alive:
            _signal(pid, signal.SIGUSR2)
    time.sleep(0.5)
    found = []
    for pid in alive:
        stack = (records / f"alive-{pid}.stack").read_text(encoding="utf-8", errors="replace")
        found.append(((records / f"alive-{pid}").read_text(encoding="utf-8"), stack))
    return tuple(sorted([(rank, stack) for rank, stack in found if stack]))


def _recorded(records: Path) -> list[int]:
    return sorted([int(path.name.removeprefix("alive-")) for path in records.glob("alive-*[0-9]")])


def _signal(pid: int, number: int) -> bool:
    """Send a signal; whether there is such a process."""
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


class Interrupted(BaseException):
    """The signal with this number asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.status = 128 + number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
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
