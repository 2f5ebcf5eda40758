"""Why a program failed, said once: the rank that failed first and its last lines."""

from __future__ import annotations

import re
from pathlib import Path

from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.processes import Outcome
from fsdp_migrate.verify.records import Ending, Rank, read_endings

_LINES = 30
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
_ABORTED = re.compile(r"exitcode\s*:\s*(-?\d+)")


def check(which: str, outcome: Outcome, ranks: list[Rank], expected: int, folder: Path) -> None:
    """Raise `ProgramFailed` unless a program came to its end and trained.

    Args:
        ranks: the records of those ranks that wrote one.
        expected: the number of ranks that were started; 0 where the program decides.
        folder: with `records`, `output` and `logs` of the run.
    """
    if outcome.timed_out:
        stands = [f"{_rank(rank)}:\n{_where(stack)}" for rank, stack in outcome.stacks]
        reason = f"it did not end within {outcome.seconds:.0f} seconds"
        raise ProgramFailed(which, reason, "\n".join(stands) or _tail(folder / "output"))
    endings = read_endings(folder / "records")
    bad = [ending for ending in endings if not ending.well]
    if outcome.status != 0 and not _only_aborted(folder, bad, ranks, expected):
        told = next((ending for ending in bad if ending.failure), None)
        if told is not None:
            error = told.failure.strip().splitlines()[-1]
            raise ProgramFailed(which, f"{_rank(told.rank)} raised {error}", _cut(told.failure))
        raise ProgramFailed(which, *_from_output(outcome, folder))
    for ending in endings:
        if ending.status and outcome.status == 0:
            # A program may start its ranks itself and not look at how they ended.
            reason = f"{_rank(ending.rank)} ended with exit status {ending.status}"
            raise ProgramFailed(which, reason, _tail(folder / "output"))
    if not any(rank.losses for rank in ranks):
        raise ProgramFailed(which, "no rank called backward", _tail(folder / "output"))
    if expected and len(ranks) != expected:
        reason = f"{len(ranks)} of {expected} ranks left a record"
        raise ProgramFailed(which, reason, _tail(folder / "output"))


def _only_aborted(folder: Path, bad: list[Ending], ranks: list[Rank], expected: int) -> bool:
    """Whether all work was done and a process then aborted while it shut down, as FSDP1 on gloo now
    and then does.
    """
    statuses = set(_ABORTED.findall(_text(folder / "output")))
    return not bad and len(ranks) == expected and statuses == {"-6"}


def _from_output(outcome: Outcome, folder: Path) -> tuple[str, str]:
    cause = _ROOT_CAUSE.search(_text(folder / "output"))
    if cause is None:
        return f"exit status {outcome.status}", _tail(folder / "output")
    rank, status = cause.groups()
    logs = sorted(folder.glob(f"logs/**/{rank}/stderr.log"))
    said = _tail(logs[-1]) if logs else ""
    return f"rank {rank} ended with exit status {status}", said or _tail(folder / "output")


def _rank(rank: int | str) -> str:
    return f"rank {rank}" if str(rank).isdigit() else "a process that is no rank"


def _where(stack: str) -> str:
    """The innermost lines of a stack, without torch's own where the program's can be shown."""
    lines = [line for line in stack.splitlines() if line.startswith("  File")]
    own = [line for line in lines if "site-packages" not in line and "/lib/python" not in line]
    return "\n".join((own or lines)[:3])


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _tail(path: Path) -> str:
    return _cut(_text(path))


def _cut(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_LINES:])
