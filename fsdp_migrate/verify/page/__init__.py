"""`--report`: the result of `verify` as one HTML file that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from fsdp_migrate.verify import curves
from fsdp_migrate.verify.page import tables
from fsdp_migrate.verify.page.plot import Curve, chart
from fsdp_migrate.verify.page.style import STYLE
from fsdp_migrate.verify.verdict import Verdict

_DIFF_LINES = 3000
"""A longer diff is cut: the reader has the files."""


def render(verdict: Verdict, name: str) -> str:
    """The whole page; `name` is the program's."""
    title = escape(f"{name}: FSDP1 and FSDP2")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # The page loads nothing, whatever stands in the program's text.
            '<meta http-equiv="Content-Security-Policy"'
            " content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{title}</title>",
            f"<style>\n{STYLE}</style>",
            "<body>",
            f"<h1>{title}</h1>",
            *_verdict(verdict),
            *_charts(verdict),
            *tables.sections(verdict),
            *_diff(verdict.sources.diff),
            "</body>",
            "</html>",
            "",
        ]
    )


def _verdict(verdict: Verdict) -> Iterator[str]:
    kind = "same" if verdict.equal else "different"
    yield f'<p class="verdict {kind}">{escape(verdict.line())}</p>'
    causes = verdict.causes
    if causes:
        yield '<div class="cause">'
        yield f"<h3>Cause: {escape(causes[0].title)}</h3>"
        yield f"<p>{escape(causes[0].advice)}</p>"
        yield "</div>"
    told = [f"not compared: {text}" for text in verdict.uncompared]
    told += [verdict.cost, *verdict.notes]
    yield "<ul>"
    yield from (f"<li>{escape(text)}</li>" for text in told)
    yield "</ul>"


def _charts(verdict: Verdict) -> Iterator[str]:
    one, other = verdict.original, verdict.migrated
    mark = float(verdict.first.step) if verdict.first else None
    mean = "Loss, mean of the ranks" if verdict.ranks > 1 else "Loss"
    yield '<div class="charts">'
    yield _figure(mean, _both(curves.losses(one), curves.losses(other)), mark)
    yield _figure("Gradient norm", _both(curves.norms(one), curves.norms(other)), mark)
    yield _gap("Difference of the losses, largest of the ranks", curves.loss_gaps(one, other), mark)
    yield _gap("Difference of the gradient norms", curves.norm_gaps(one, other), mark)
    yield "</div>"


def _both(one: list[curves.Point], other: list[curves.Point]) -> list[Curve]:
    return [Curve("original", "original", one), Curve("migrated", "migrated", other)]


def _figure(title: str, lines: list[Curve], mark: float | None) -> str:
    keys = "".join(f'<span class="key {line.kind}">{line.name}</span>' for line in lines)
    return _framed(f"{escape(title)} {keys}", chart(lines, title, mark))


def _gap(title: str, points: list[curves.Point], mark: float | None) -> str:
    if points and all(apart == 0 for _, apart in points):
        return _framed(
            title, '<p class="empty">None: what both have is the same to the last bit.</p>'
        )
    return _framed(title, chart([Curve("difference", "gap", points)], title, mark, log=True))


def _framed(caption: str, content: str) -> str:
    return f"<figure>\n<figcaption>{caption}</figcaption>\n{content}\n</figure>"


def _diff(diff: str) -> Iterator[str]:
    yield "<h2>The change that was tested</h2>"
    lines = diff.splitlines()
    if not lines:
        yield '<p class="empty">No Python file differs.</p>'
        return
    yield f"<details open><summary>{len(lines)} lines of diff</summary>"
    # A span is a block: a line break between two would show as an empty line.
    spans = (f'<span class="{_kind(line)}">{escape(line)}</span>' for line in lines[:_DIFF_LINES])
    yield f"<pre>{''.join(spans)}</pre>"
    if len(lines) > _DIFF_LINES:
        yield f'<p class="soft">{len(lines) - _DIFF_LINES} more lines are left out.</p>'
    yield "</details>"


def _kind(line: str) -> str:
    if line.startswith(("--- ", "+++ ")):
        return "file"
    return {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "same")
