"""The result in the terminal, the verdict in its last line, and as a few lines of Markdown."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from fsdp_migrate.verify.compare import farthest
from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.records import Run
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

    for text in verdict.uncompared:
        say(f"not compared: {text}", dim=True)
    ranks = len(verdict.original.ranks)
    say(f"loss, mean of {ranks} ranks" if ranks > 1 else "loss")
    for row in _table(list(_rows(verdict))):
        cells = (cell.rjust(width) for cell, width in zip(row, (8, 14, 14, 12), strict=True))
        same = row[3] in ("0", "…", _HEADER[3])
        say("".join(cells), **({} if same else {"fg": "yellow"}))
    for line in _figures(verdict):
        say(line, dim=True)
    for quirk in verdict.quirks:
        say(quirk.text())
    for text in [*verdict.said, *map(str, verdict.printed)]:
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
    longer = max((rank.loss_steps for run in runs for rank in run.ranks), key=len)
    both = itertools.zip_longest(*(run.backwards for run in runs), fillvalue=[])
    several, seen = Counter(longer), Counter[int]()
    for step, (losses, others) in zip(longer, both, strict=True):
        seen[step] += 1
        name = f"{step}.{seen[step]}" if several[step] > 1 else str(step)
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


def _figures(verdict: Verdict) -> Iterator[str]:
    yield f"gradient norms: largest relative difference {verdict.max_rel_grad_norm:.3g}"
    if verdict.max_abs_param_diff is not None:
        where = f", the first is {next(iter(odd))}" if (odd := verdict.odd_parameters) else ""
        yield f"last parameters: largest difference {verdict.max_abs_param_diff:.3g}{where}"
    if verdict.max_abs_buffer_diff:
        yield f"last buffers: largest difference {verdict.max_abs_buffer_diff:.3g}, {verdict.buffer}"
    yield f"arithmetic: {verdict.arithmetic}" + (", CUDA emulated" if verdict.emulated else "")
    yield f"tolerance: {verdict.why}"
    yield verdict.cost
    if verdict.control is not None:
        how = "the same" if verdict.deterministic else "not the same"
        yield f"control: the original program, run twice, is {how}"
    for note in verdict.notes:
        yield f"note: {note}"
    told = {verdict.first.what} if verdict.first else set()
    for difference in verdict.differences:
        if difference.what not in told:
            told.add(difference.what)
            yield f"also: {difference}"


def markdown(verdict: Verdict, name: str) -> str:
    """`--summary`, as for GitHub: a heading, the verdict, the cause, what was not compared and a table."""
    sign = "✅" if verdict.equal else "❌"
    lines = [f"### {sign} fsdp-migrate verify: `{name}`", "", escaped(verdict.line()), ""]
    if cause := verdict.cause:
        lines += [f"**Cause:** {escaped(cause.title)}. {escaped(cause.advice)}", ""]
    runs = verdict.original, verdict.migrated
    rows = {
        "last loss of the first rank": map(_last_loss, runs),
        "optimizer steps": (str(run.steps) for run in runs),
        "seconds": (f"{run.seconds:.1f}" for run in runs),
        "peak memory of a rank, MiB": (f"{run.peak_memory_bytes / 2**20:.0f}" for run in runs),
    }
    ran = verdict.environment.items()
    run_as = (f"{key}: {value}" for key, value in ran if key in ("commit", "date", "command"))
    lines += ["| | original | migrated |", "|---|---:|---:|"]
    lines += [f"| {' | '.join([title, *values])} |" for title, values in rows.items()]
    did = (line.text() for line in verdict.quirks)
    lines += ["", *(f"- {escaped(text)}" for text in [*did, *verdict.remarks, *run_as]), ""]
    return "\n".join(lines)


def markdown_of_failure(failure: ProgramFailed, name: str) -> str:
    """The same for a program that failed."""
    fence = "````"
    lines = [f"### ❌ fsdp-migrate verify: `{name}`", "", escaped(str(failure)), ""]
    return "\n".join([*lines, fence, failure.details, fence, ""])


def _last_loss(run: Run) -> str:
    losses = run.ranks[0].losses if run.ranks else []
    return f"{losses[-1]:.8g}" if losses else "-"
