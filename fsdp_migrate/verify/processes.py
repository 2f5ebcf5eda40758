"""One program's processes: start them, wait for them, and leave none behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

_GRACE = 3.0
"""Seconds between the request to end and the end."""


@dataclass(frozen=True)
class Outcome:
    """How a program ended.

    Attributes:
        status: the launcher's exit status.
        timed_out: whether it had to be ended.
        stacks: when it was, where each process stood: its rank, if it had one, and its stack.
    """

    status: int
    seconds: float
    timed_out: bool = False
    stacks: tuple[tuple[str, str], ...] = ()


def run(
    command: list[str], folder: Path, environment: dict[str, str], output: Path, timeout: float
) -> Outcome:
    """Run a program to its end, or to the end of its time.

    Args:
        output: the file for what it prints.
    """
    records = Path(environment["FSDP_MIGRATE_RECORD"])
    start = time.monotonic()
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            stacks = _stacks(records)
            return Outcome(-1, timeout, True, stacks)
        finally:
            _end(process, records)
    return Outcome(status, time.monotonic() - start)


def _end(process: subprocess.Popen[bytes], records: Path) -> None:
    """End the launcher and whatever it leaves: torchrun's workers have groups of their own."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    for pid in _alive(records):
        _signal(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _stacks(records: Path) -> tuple[tuple[str, str], ...]:
    alive = _alive(records)
    if hasattr(signal, "SIGUSR2"):
        for pid in alive:
            _signal(pid, signal.SIGUSR2)
    time.sleep(0.5)
    found = []
    for pid in alive:
        stack = (records / f"alive-{pid}.stack").read_text(encoding="utf-8", errors="replace")
        found.append(((records / f"alive-{pid}").read_text(encoding="utf-8"), stack))
    return tuple(sorted((rank, stack) for rank, stack in found if stack))


def _alive(records: Path) -> list[int]:
    """The recorded processes that live; another process with an old number is none of them."""
    pids = [int(path.name.removeprefix("alive-")) for path in records.glob("alive-*[0-9]")]
    return sorted(pid for pid in pids if _is_ours(pid, records))


def _is_ours(pid: int, records: Path) -> bool:
    status = Path("/proc", str(pid), "environ")
    try:
        if Path("/proc/self/environ").exists():
            return os.fsencode(str(records)) in status.read_bytes()
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)
