"""The page's tables: ranks, time and memory, collectives, parameters, environment."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from fsdp_migrate.verify.compare import farthest
from fsdp_migrate.verify.records import Rank, Run
from fsdp_migrate.verify.verdict import Verdict

_ROWS = 64
"""At most in a table."""

_RANKS = (
    "rank",
    "losses, original",
    "migrated",
    "last loss, original",
    "migrated",
    "largest difference",
    "first at step",
)


def sections(verdict: Verdict) -> Iterator[str]:
    """All tables, each under its heading."""
    runs = (verdict.original, verdict.migrated)
    yield "<h2>Ranks</h2>"
    yield _table(_RANKS, _ranks(verdict), off=5)
    yield "<h2>Time and memory</h2>"
    yield _table(("", "original", "migrated"), _costs(*runs))
    yield "<h2>Parameters after the last step</h2>"
    yield _parameters(verdict)
    yield "<h2>Environment</h2>"
    facts = {
        **verdict.environment,
        "backend": verdict.backend or "none",
        "arithmetic": verdict.arithmetic,
        "tolerance": verdict.why,
    }
    yield _table(("", ""), facts.items(), kind="plain")


def _table(
    header: Sequence[str], rows: Iterable[Sequence[str]], off: int = -1, kind: str = ""
) -> str:
    """A table; in the column `off` what is not zero is red."""
    lines, red = [f'<div class="scroll"><table class="{kind}">'], ' class="off"'
    if any(header):
        cells = "".join(f"<th>{escape(name)}</th>" for name in header)
        lines.append(f"<tr>{cells}</tr>")
    rows = list(rows)
    for row in rows[:_ROWS]:
        cells = "".join(
            f"<td{red if index == off and text not in ('0', '-') else ''}>{escape(text)}</td>"
            for index, text in enumerate(row)
        )
        lines.append(f"<tr>{cells}</tr>")
    lines.append("</table></div>")
    if len(rows) > _ROWS:
        lines.append(f'<p class="soft">{len(rows) - _ROWS} more rows are left out.</p>')
    return "\n".join(lines)


def _empty(text: str) -> str:
    return f'<p class="empty">{text}</p>'


def _ranks(verdict: Verdict) -> Iterator[Sequence[str]]:
    firsts = {d.rank: d.step for d in sorted(verdict.differences, reverse=True)}
    pairs = itertools.zip_longest(verdict.original.ranks, verdict.migrated.ranks)
    for number, (one, other) in enumerate(pairs):
        both = (one, other)
        yield (
            str(number),
            *(str(len(rank.losses)) if rank else "-" for rank in both),
            *(f"{rank.losses[-1]:.8g}" if rank and rank.losses else "-" for rank in both),
            _gap(one, other),
            str(firsts.get(number, "-")),
        )


def _gap(one: Rank | None, other: Rank | None) -> str:
    most = farthest(one.losses, other.losses) if one and other else None
    return "-" if most is None else f"{most:.3g}"


def _costs(*runs: Run) -> Iterator[Sequence[str]]:
    steps = [run.step_seconds for run in runs]
    peaks = [run.peak_memory_bytes for run in runs]
    yield ("whole run, s", *(f"{run.seconds:.1f}" for run in runs))
    yield (
        "a step, median of the first rank, ms",
        *("-" if step is None else f"{1000 * step:.1f}" for step in steps),
    )
    yield (
        "peak memory of a rank, MiB",
        *(f"{peak / 2**20:.0f}" if peak else "-" for peak in peaks),
    )


def _parameters(verdict: Verdict) -> str:
    if verdict.parameters is None:
        return _empty("They could not be compared.")
    odd = verdict.odd_parameters
    if not odd:
        return _empty(f"All {len(verdict.parameters)} are the same to the last bit.")
    rows = [(name, f"{apart:.3g}") for name, apart in odd.items()]
    text = f"{len(odd)} of {len(verdict.parameters)} differ, in the model's order:"
    return f"<p>{text}</p>\n" + _table(("parameter", "largest difference"), rows)
