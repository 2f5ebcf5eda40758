"""The result in the terminal, with the verdict and what to do next at the end, and as a few lines of Markdown."""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from fsdp_migrate.verify.compare import farthest
from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.next_steps import NextSteps
from fsdp_migrate.verify.verdict import Verdict
from fsdp_migrate.verify.where.text import in_words
from fsdp_migrate.views.markdown import escaped
from fsdp_migrate.views.terminal import columns, say, wrapped

_ROWS = 24
"""Rows of the table at most; of a longer run the middle is left out."""

_FEW = 4
_WIDTH = 60
_BARS = "▁▂▃▄▅▆▇█"
"""Of so few losses no curve is drawn; a curve has at most so many bars."""

Row = tuple[str, str, str, str]
_HEADER: Row = ("step", "original", "migrated", "difference")


def show(
    verdict: Verdict, err: bool = False, *, verbose: bool = False, page: Path | None = None
) -> None:
    """Print a verdict; `page` is where it was written as a page."""
    ranks = len(verdict.original.ranks)
    width = columns(err)
    for text in verdict.notable(verbose=verbose):
        say(wrapped(text, width), err, dim=True)
    if ranks > 1:
        title = f"loss, mean of {ranks} ranks, and the largest difference on a rank"
    else:
        title = "loss"
    say(f"{title}; steps are counted from 1", err)
    rows = [*_rows(verdict)]
    if len(rows) > _ROWS:
        rows[_ROWS // 2 : -_ROWS // 2] = [("…",) * 4]
    for row in [_HEADER, *rows]:
        _say_row(row, err)
    for text in _curves(verdict):
        say(text, err)
    link = "add --report FILE.html"
    if page:
        link = page.resolve().as_uri()
    say(f"curves of losses and gradient norms, and the diff: {link}", err, dim=True)
    for text in verdict.seen(verbose):
        say(wrapped(text, width), err, fg="yellow")
    for text, indent in in_words(verdict.where, verbose=verbose):
        say(wrapped(text, width, rest=indent), err, fg="yellow")
    if cause := verdict.cause:
        say(wrapped(f"cause: {cause.title}. {cause.advice}", width), err, fg="yellow")
    say(wrapped(verdict.line(), width), err, bold=True, fg=_color(verdict))
    say_next(verdict.next)


def say_next(following: NextSteps) -> None:
    """Print what to do now on standard error: the verdict is the last line of standard output."""
    for text in following.texts():
        say(wrapped(text, columns(err=True), rest="     "), err=True)


def _color(verdict: Verdict) -> str:
    if verdict.equal:
        return "green"
    return "red"


def _say_row(row: Row, err: bool) -> None:
    """Print a row of the table of losses, in yellow where the programs are apart."""
    cells = [cell.rjust(width) for cell, width in zip(row, (8, 14, 14, 12), strict=True)]
    if row[3] in ("0", "…", _HEADER[3]):
        say("".join(cells), err)
    else:
        say("".join(cells), err, fg="yellow")


def _rows(verdict: Verdict) -> Iterator[Row]:
    runs = verdict.original, verdict.migrated
    longer = max(([*run.places] for run in runs), key=len)
    steps = max(len(rank.squares) for run in runs for rank in run.ranks)
    both = itertools.zip_longest(*[run.backwards for run in runs], fillvalue=[])
    for (step, nth, several), (losses, others) in zip(longer, both, strict=True):
        if several > 1:
            name = f"{step}.{nth}"
        else:
            name = str(step)
        if step > steps:
            name = "after"
        most = farthest(losses, others)
        if most is None:
            apart = "-"
        elif most:
            apart = f"{most:.2e}"
        else:
            apart = "0"
        yield name, _mean(losses), _mean(others), apart


def _curves(verdict: Verdict) -> Iterator[str]:
    """Both programs' losses as bars on one scale, if there are more than a few."""
    runs = {"original": verdict.original, "migrated": verdict.migrated}
    means = {name: [*map(fmean, run.backwards)] for name, run in runs.items()}
    numbers = [loss for losses in means.values() for loss in losses if math.isfinite(loss)]
    if len(numbers) <= 2 * _FEW:
        return
    low = min(numbers)
    high = max(numbers)
    yield f"loss between {low:.4g} and {high:.4g}; the first step is at the left"
    for name, losses in means.items():
        yield f"{name:>10}  {''.join(_bar(loss, low, high) for loss in _thinned(losses))}"


def _thinned(losses: list[float]) -> list[float]:
    """As many losses as fit on a line, evenly spread."""
    if len(losses) <= _WIDTH:
        return losses
    return [losses[place * (len(losses) - 1) // (_WIDTH - 1)] for place in range(_WIDTH)]


def _bar(loss: float, low: float, high: float) -> str:
    if not math.isfinite(loss):
        return "?"
    if high > low:
        share = (loss - low) / (high - low)
    else:
        share = 0.0
    return _BARS[round(share * (len(_BARS) - 1))]


def _mean(losses: list[float]) -> str:
    if losses:
        return f"{sum(losses) / len(losses):.8f}"
    return "-"


def markdown(verdict: Verdict, name: str) -> str:
    """`--summary`, as for GitHub: a heading, the verdict, the cause, a table and what else was found."""
    lines = [_heading(name, verdict.equal), "", escaped(verdict.line()), ""]
    if cause := verdict.cause:
        lines += [f"**Cause:** {escaped(cause.title)}. {escaped(cause.advice)}", ""]
    lines += ["| | original | migrated |", "|---|---:|---:|"]
    lines += [f"| {' | '.join(row)} |" for row in verdict.costs]
    ran = [
        f"{k}: {v}" for k, v in verdict.environment.items() if k in ("commit", "date", "command")
    ]
    lines += [f"- differs at {escaped(str(found))}" for found in verdict.where]
    found = [*verdict.seen(), *verdict.notable(verbose=False), *ran]
    lines += ["", *[f"- {escaped(text)}" for text in found], ""]
    return "\n".join([*lines, *_markdown_of_next(verdict.next)])


def markdown_of_failure(failure: ProgramFailed, name: str) -> str:
    """The same for a program that failed."""
    fence = "````"
    lines = [_heading(name, False), "", escaped(str(failure)), ""]
    differs = [f"- {escaped(text)}" for text in failure.before]
    lines += [fence, failure.details, fence, "", *differs, ""]
    return "\n".join([*lines, *_markdown_of_next(failure.next)])


def _markdown_of_next(following: NextSteps) -> Iterator[str]:
    for text in following.texts():
        yield escaped(text)
        yield ""


def _heading(name: str, equal: bool) -> str:
    mark = "❌"
    if equal:
        mark = "✅"
    return f"### {mark} fsdp-migrate verify: `{name}`"
