"""`--report`: the result of `verify` as one HTML file that needs nothing but itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape

from fsdp_migrate.verify.compare import distance, farthest
from fsdp_migrate.verify.page import tables
from fsdp_migrate.verify.page.plot import Curve, Point, chart
from fsdp_migrate.verify.page.style import STYLE
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.verdict import Verdict
from fsdp_migrate.views.page import document

_DIFF_LINES = 3000
"""A longer diff is cut: the reader has the files."""


def render(verdict: Verdict, name: str) -> str:
    """The whole page; `name` is the program's."""
    diff = _diff(verdict.sources.diff)
    body = [
        *_verdict(verdict),
        *_charts(verdict),
        *tables.sections(verdict),
        *_quirks(verdict),
        *diff,
    ]
    return document(f"{name}: FSDP1 and FSDP2", STYLE, body)


def _verdict(verdict: Verdict) -> Iterator[str]:
    kind = "same" if verdict.equal else "different"
    yield f'<p class="verdict {kind}">{escape(verdict.line())}</p>'
    if cause := verdict.cause:
        yield f'<div class="cause"><h3>Cause: {escape(cause.title)}</h3>'
        yield f"<p>{escape(cause.advice)}</p></div>"
    yield "<ul>"
    yield from (f"<li>{escape(text)}</li>" for text in verdict.remarks)
    yield "</ul>"


def _charts(verdict: Verdict) -> Iterator[str]:
    runs = {"original": verdict.original, "migrated": verdict.migrated}
    mark = float(verdict.first.step) if verdict.first else None
    mean = "Loss, mean of the ranks" if verdict.ranks > 1 else "Loss"
    gaps = "Difference of the losses, largest of the ranks"
    yield '<div class="charts">'
    for title, points in ((mean, _losses), ("Gradient norm", _norms)):
        lines = [Curve(name, name, points(run)) for name, run in runs.items()]
        keys = "".join(f'<span class="key {line.kind}">{line.name}</span>' for line in lines)
        yield _framed(f"{escape(title)} {keys}", chart(lines, title, mark))
    yield _gap(gaps, _loss_gaps(*runs.values()), mark)
    yield _gap("Difference of the gradient norms", _norm_gaps(*runs.values()), mark)
    yield "</div>"


def _gap(title: str, points: list[Point], mark: float | None) -> str:
    if points and all(apart == 0 for _, apart in points):
        return _framed(
            title, '<p class="empty">None: what both have is the same to the last bit.</p>'
        )
    return _framed(title, chart([Curve("difference", "gap", points)], title, mark, log=True))


def _losses(run: Run) -> list[Point]:
    """The mean of the ranks' losses; the backwards of one step share its unit of length."""
    return [
        (place, sum(values) / len(values))
        for place, values in zip(_places(run), run.backwards, strict=True)
    ]


def _loss_gaps(original: Run, migrated: Run) -> list[Point]:
    """The largest difference of two losses over the ranks."""
    both = zip(_places(original), original.backwards, migrated.backwards, strict=False)
    return [(place, farthest(ones, others) or 0.0) for place, ones, others in both]


def _norms(run: Run) -> list[Point]:
    """The global gradient norm."""
    return [(float(step), norm) for step, norm in enumerate(run.grad_norms, 1)]


def _norm_gaps(original: Run, migrated: Run) -> list[Point]:
    """The difference of the gradient norms."""
    both = zip(original.grad_norms, migrated.grad_norms, strict=False)
    return [(float(step), distance(a, b)) for step, (a, b) in enumerate(both, 1)]


def _places(run: Run) -> list[float]:
    """The place of each loss on the axis of steps: the last backward of step 3 is at 3, the others are before it."""
    steps = max((rank.loss_steps for rank in run.ranks), key=len, default=[])
    several = Counter(steps)
    seen: Counter[int] = Counter()
    found = []
    for step in steps:
        seen[step] += 1
        found.append(step - 1 + seen[step] / several[step])
    return found


def _framed(caption: str, content: str) -> str:
    return f"<figure>\n<figcaption>{caption}</figcaption>\n{content}\n</figure>"


def _quirks(verdict: Verdict) -> Iterator[str]:
    if verdict.quirks:
        yield "<h2>What like_fsdp1 did</h2>"
        yield "<ul>"
        yield from (f"<li>{escape(line.text())}</li>" for line in verdict.quirks)
        yield "</ul>"


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
