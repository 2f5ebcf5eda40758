"""`--report`: the result of `verify` as one HTML file that needs nothing but itself."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from fsdp_migrate.verify.compare import distance, farthest
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.verdict import Verdict
from fsdp_migrate.verify.where import page as where_page
from fsdp_migrate.views.page import document, prose

Point = tuple[float, float]
"""A step, counted from 1, and a value, which may be NaN or infinite."""

_ROWS = 64
_DIFF_LINES = 3000
"""At most in a table and in the diff."""
_HUGE = 1e150
"""A larger value is drawn as infinite."""
_WIDTH = 720
_HEIGHT = 240
_LEFT = 80
_RIGHT = 700
_TOP = 14
_BOTTOM = 205

_STYLE = """\
:root { color-scheme: light dark; --original: #0969da; --migrated: #d1570a; --line: #8885; --bad: #cf222e; }
body { margin: 0 auto; padding: 1.5rem; max-width: 66rem; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 1.8rem 0 .5rem; }
.verdict { border-left: 5px solid var(--bad); padding: .5rem 1rem; font-weight: 600; overflow-wrap: anywhere; }
.verdict.same { border-color: #1a7f37; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(28rem, 100%), 1fr)); gap: 1.2rem; }
figure { margin: 0; break-inside: avoid; } figcaption { font-weight: 600; }
i.original { color: var(--original); } i.migrated { color: var(--migrated); }
svg { width: 100%; height: auto; display: block; font-size: 11px; fill: GrayText; }
line { stroke: var(--line); } .mark { stroke: var(--bad); stroke-dasharray: 2 3; }
path { stroke: #8250df; fill: none; stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round; }
.original { stroke: var(--original); stroke-width: 3; } .migrated { stroke: var(--migrated); }
path.migrated { stroke-dasharray: 6 4; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); text-align: left; overflow-wrap: anywhere; }
pre { font: 12.5px/1.45 ui-monospace, monospace; border: 1px solid var(--line); padding: .6rem; overflow-x: auto; }
pre span { display: block; min-height: 1.45em; } .add { background: #2da04430; } .del { background: #e5534b30; }
"""


def render(verdict: Verdict, name: str) -> str:
    """The whole page; `name` is the program's."""
    body = [
        *_verdict(verdict),
        *_charts(verdict),
        "<h2>Ranks</h2>",
        _table(_RANKS, _ranks(verdict)),
        "<h2>Both programs</h2>",
        _table(("", "original", "migrated"), verdict.costs),
        "<h2>Parameters after the last step</h2>",
        _parameters(verdict),
        "<h2>Environment</h2>",
        _table(("", ""), {**verdict.environment, "backend": verdict.backend}.items()),
        *where_page.section(verdict.where),
        *_diff(verdict.diff.splitlines()),
    ]
    return document(f"{name}: FSDP1 and FSDP2", _STYLE, body)


def _verdict(verdict: Verdict) -> Iterator[str]:
    if verdict.equal:
        kind = "same"
    else:
        kind = "different"
    yield f'<p class="verdict {kind}">{escape(verdict.line())}</p>'
    if cause := verdict.cause:
        yield f"<p><b>Cause: {prose(cause.title)}.</b> {prose(cause.advice)}</p>"
    yield from (f"<p>{prose(text)}</p>" for text in verdict.next.texts())
    yield from where_page.links(verdict.where)
    items = [f"<li>{prose(text)}</li>" for text in [*verdict.remarks, *verdict.seen()]]
    yield f"<ul>{''.join(items)}</ul>"


def _charts(verdict: Verdict) -> Iterator[str]:
    one = verdict.original
    other = verdict.migrated
    runs = {"original": one, "migrated": other}
    first = verdict.first
    if first and not first.ended:
        mark = first.step
    else:
        mark = 0
    both = zip(_places(one), one.backwards, other.backwards, strict=False)
    losses = [(place, farthest(*pair) or 0.0) for place, *pair in both]
    pairs = zip(one.grad_norms, other.grad_norms, strict=False)
    norms: list[Point] = [(step, distance(*pair)) for step, pair in enumerate(pairs, 1)]
    charts: list[tuple[str, dict[str, list[Point]]]] = [
        ("Loss, mean of the ranks", {name: _losses(run) for name, run in runs.items()}),
        ("Gradient norm", {name: [*enumerate(run.grad_norms, 1)] for name, run in runs.items()}),
        ("Difference of the losses, largest of the ranks", {"difference": losses}),
        ("Difference of the gradient norms", {"difference": norms}),
    ]
    yield '<div class="charts">'
    for title, curves in charts:
        names = "".join(f' <i class="{kind}">{kind}</i>' for kind in curves if len(curves) > 1)
        drawn = "\n".join(_chart(title, curves, mark))
        yield f"<figure><figcaption>{title}{names}</figcaption>\n{drawn}\n</figure>"
    yield "</div>"


def _losses(run: Run) -> list[Point]:
    """The mean of the ranks' losses."""
    pairs = zip(_places(run), run.backwards, strict=True)
    return [(place, sum(losses) / len(losses)) for place, losses in pairs]


def _places(run: Run) -> list[float]:
    """The place of each loss on the axis of steps: the last backward of step 3 is at 3, the others are before it."""
    return [step - 1 + nth / several for step, nth, several in run.places]


def _chart(title: str, curves: dict[str, list[Point]], mark: int) -> Iterator[str]:
    """Curves of both programs, or on a logarithmic axis one of differences; `mark` is the step of the first one."""
    points = [point for curve in curves.values() for point in curve]
    if not points:
        yield "<p>Nothing was recorded.</p>"
        return
    log = "difference" in curves
    if log and not any(value for _, value in points):
        yield "<p>None: what both have is the same to the last bit.</p>"
        return
    across = _Axis([step for step, _ in points], (_LEFT, _RIGHT), "whole")
    values = [value for _, value in points if abs(value) < _HUGE]
    up = _Axis(values, (_BOTTOM, _TOP), "log" if log else "")
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}">'
    for y, text in up.ticks():
        yield f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{text}</text>'
    for x, text in across.ticks():
        yield f'<text x="{x}" y="{_BOTTOM + 16}" text-anchor="middle">{text}</text>'
    yield f'<text x="{_RIGHT}" y="{_HEIGHT - 3}" text-anchor="end">step</text>'
    if mark:
        x = across(mark)
        yield f'<line class="mark" x1="{x}" x2="{x}" y1="{_TOP}" y2="{_BOTTOM}"/>'
    for kind, curve in curves.items():
        yield from _curve(kind, curve, across, up)
    yield "</svg>"


class _Axis:
    """From values to pixels; zero, which has no logarithm, is one power of ten below the smallest other value."""

    def __init__(self, values: list[float], ends: tuple[int, int], kind: str = "") -> None:
        self.start, self.end = ends
        self.log = kind == "log"
        self.whole = kind == "whole"
        self.zero = self.log and 0 in values
        log = self.log
        places = [math.log10(value) if log else value for value in values if value or not log]
        self.low = min(places, default=0.0)
        self.high = max(places, default=1.0)
        if log:
            self.low = math.floor(self.low) - self.zero
            self.high = math.ceil(self.high)
        if self.low == self.high:
            self.low = self.low - 1
            self.high = self.high + 1

    def __call__(self, value: float) -> float:
        if not self.log:
            return self._pixel(value)
        if not value:
            return self._pixel(self.low)
        return self._pixel(math.log10(value))

    def _pixel(self, place: float) -> float:
        share = (place - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Pixels and labels of round numbers, of powers of ten on a logarithmic axis."""
        tens = 10.0 ** math.floor(math.log10(self.high - self.low))
        steps = [factor * tens for factor in (0.2, 0.5, 1, 2)]
        step = next(each for each in steps if (self.high - self.low) / each <= 5)
        if self.log or self.whole:
            step = max(step, 1)
        for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1):
            text = f"{number * step:.6g}"
            if self.log:
                text = f"1e{number * step:g}"
            if self.zero and number * step <= self.low:
                text = "0"
            yield self._pixel(number * step), text


def _curve(kind: str, points: Sequence[Point], across: _Axis, up: _Axis) -> Iterator[str]:
    path = ""
    begins = True
    for step, value in points:
        x = across(step)
        title = f"<title>{kind}, step {step:g}: {value:.8g}</title>"
        if odd := not abs(value) < _HUGE:  # as NaN, too
            yield f'<path class="{kind} odd" d="M{x - 4} {_TOP - 9}h8l-4 7z">{title}</path>'
        elif begins:
            path += f"M{x} {up(value)}h0"  # h0: one point shows
        else:
            path += f"L{x} {up(value)}"
        begins = odd
    yield f'<path class="{kind}" d="{path}"/>'


_RANKS = (
    "rank", "losses, original", "migrated", "last loss, original", "migrated", "largest difference",
    "first at step",
)  # fmt: skip


def _ranks(verdict: Verdict) -> Iterator[Sequence[str]]:
    firsts: dict[int, str] = {}
    for found in sorted(verdict.differences, reverse=True):
        firsts[found.rank] = str(found.step)
        if found.ended:
            firsts[found.rank] = "after the last"
    pairs = itertools.zip_longest(verdict.original.ranks, verdict.migrated.ranks)
    for number, (one, other) in enumerate(pairs):
        counts = []
        lasts = []
        for rank in (one, other):
            counts.append("0")
            lasts.append("-")
            if rank and rank.losses:
                counts[-1] = str(len(rank.losses))
                lasts[-1] = f"{rank.losses[-1]:.8g}"
        most = None
        if one and other:
            most = farthest(one.losses, other.losses)
        gap = "-"
        if most is not None:
            gap = f"{most:.3g}"
        yield str(number), *counts, *lasts, gap, firsts.get(number, "-")


def _parameters(verdict: Verdict) -> str:
    if verdict.parameters is None:
        return "<p>They could not be compared.</p>"
    odd = [(name, f"{most:.3g}") for name, most in verdict.odd_parameters.items()]
    text = f"{len(odd)} of {len(verdict.parameters)} differ in any bit, in the model's order."
    return f"<p>{text}</p>" + _table(("parameter", "largest difference"), odd)


def _table(header: Sequence[str], given: Iterable[Sequence[str]]) -> str:
    rows = [*given]
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = [f"<tr>{head}</tr>"]
    for row in rows[:_ROWS]:
        cells = "".join(f"<td>{escape(text)}</td>" for text in row)
        lines.append(f"<tr>{cells}</tr>")
    more = ""
    if len(rows) > _ROWS:
        more = f"<p>{len(rows) - _ROWS} more rows are left out.</p>"
    body = "\n".join(lines)
    return f"<table>{body}</table>{more}"


def _diff(lines: list[str]) -> Iterator[str]:
    yield "<h2>The change that was tested</h2>"
    yield f"<details open><summary>{len(lines)} lines of diff</summary>"
    # A span is a block: a line break between two would show as an empty line.
    kind = {"+": "add", "-": "del"}.get
    shown = lines[:_DIFF_LINES]
    spans = [f'<span class="{kind(line[:1], "")}">{escape(line)}</span>' for line in shown]
    yield f"<pre>{''.join(spans)}</pre></details>"
    if len(lines) > len(shown):
        yield f"<p>{len(lines) - len(shown)} more lines are left out.</p>"
