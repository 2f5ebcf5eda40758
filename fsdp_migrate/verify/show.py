"""The result in the terminal, the verdict in its last line, and as a few lines of Markdown."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from fsdp_migrate.verify.compare import farthest
from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.verdict import Verdict
from fsdp_migrate.views.markdown import escaped
from fsdp_migrate.views.terminal import Stream, paint, write_text

_ROWS = 24
"""Rows of the table at most; of a longer run the middle is left out."""

Row = tuple[str, str, str, str]
_HEADER: Row = ("step", "original", "migrated", "difference")


def show(verdict: Verdict, stream: Stream) -> None:
    """Print a verdict."""

    def say(text: str, **style: bool | str) -> None:
        write_text(paint(text, stream, **style), stream)

    ranks = len(verdict.original.ranks)
    for text in verdict.remarks:
        say(text, dim=True)
    say(f"loss, mean of {ranks} ranks" if ranks > 1 else "loss")
    for row in _table(list(_rows(verdict))):
        cells = (cell.rjust(width) for cell, width in zip(row, (8, 14, 14, 12), strict=True))
        same = row[3] in ("0", "…", _HEADER[3])
        say("".join(cells), **({} if same else {"fg": "yellow"}))
    for text in verdict.seen:
        say(text, fg="yellow")
    if cause := verdict.cause:
        say(f"cause: {cause.title}. {cause.advice}", fg="yellow")
    say(verdict.line(), bold=True, fg="green" if verdict.equal else "red")


def _table(rows: list[Row]) -> Iterator[Row]:
    """The heading and the rows to show, with dots where some are left out."""
    yield _HEADER
    first = next((i for i, row in enumerate(rows) if row[3] != "0"), 0)
    previous = -1
    for index in _chosen(len(rows), first):
        if index != previous + 1:
            yield ("…",) * 4
        yield rows[index]
        previous = index


def _rows(verdict: Verdict) -> Iterator[Row]:
    runs = verdict.original, verdict.migrated
    longer = max(([*run.places] for run in runs), key=len)
    both = itertools.zip_longest(*(run.backwards for run in runs), fillvalue=[])
    for (step, nth, several), (losses, others) in zip(longer, both, strict=True):
        name = f"{step}.{nth}" if several > 1 else str(step)
        most = farthest(losses, others)
        apart = "-" if most is None else f"{most:.2e}" if most else "0"
        yield name, _mean(losses), _mean(others), apart


def _mean(losses: list[float]) -> str:
    return f"{sum(losses) / len(losses):.8f}" if losses else "-"


def _chosen(rows: int, first: int) -> list[int]:
    """The rows to show: both ends of a long run, and the first that differs."""
    if rows <= _ROWS:
        return list(range(rows))
    half = _ROWS // 2
    around = range(max(first - 1, 0), min(first + 2, rows))
    return sorted({*range(half), *range(rows - half, rows), *around})


def markdown(verdict: Verdict, name: str) -> str:
    """`--summary`, as for GitHub: a heading, the verdict, the cause, a table and what else was found."""
    lines = [_heading(name, verdict.equal), "", escaped(verdict.line()), ""]
    if cause := verdict.cause:
        lines += [f"**Cause:** {escaped(cause.title)}. {escaped(cause.advice)}", ""]
    lines += ["| | original | migrated |", "|---|---:|---:|"]
    lines += [f"| {' | '.join(row)} |" for row in verdict.costs]
    ran = (
        f"{k}: {v}" for k, v in verdict.environment.items() if k in ("commit", "date", "command")
    )
    found = [*verdict.seen, *verdict.remarks, *ran]
    return "\n".join([*lines, "", *(f"- {escaped(text)}" for text in found), ""])


def markdown_of_failure(failure: ProgramFailed, name: str) -> str:
    """The same for a program that failed."""
    fence = "````"
    lines = [_heading(name, False), "", escaped(str(failure)), ""]
    return "\n".join([*lines, fence, failure.details, fence, ""])


def _heading(name: str, equal: bool) -> str:
    return f"### {'✅' if equal else '❌'} fsdp-migrate verify: `{name}`"
