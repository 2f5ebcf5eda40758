"""A line chart as an inline SVG: no script, and colours that the page's style sheet decides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]
"""A step, counted from 1, and a value, which may be NaN or infinite."""

_WIDTH, _HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 22, 12, 36
_DOTS = 60
"""A curve with at most so many points shows each of them."""
_HUGE = 1e150
"""A larger value is drawn as infinite."""


@dataclass(frozen=True)
class Curve:
    """A named row of points; `kind` is its class in the style sheet."""

    name: str
    kind: str
    points: list[Point]


class _Axis:
    """From values to pixels, with ticks: values and their labels."""

    ticks: list[tuple[float, str]]

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        if low == high:
            pad = abs(low) * 0.05 or 0.5
            low, high = low - pad, high + pad
        self.low, self.high, self.start, self.end = low, high, start, end
        self.ticks = [(value, f"{value:.6g}") for value in _round_values(low, high)]

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


class _LogAxis(_Axis):
    """Powers of ten; zero, which has no logarithm, is drawn one step below the smallest of them."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        exponents = [math.log10(value) for value in values if value > 0] or [-1.0, 0.0]
        low, high = math.floor(min(exponents)), math.ceil(max(exponents))
        high += high == low
        self.floor = low - max(1, (high - low) // 6)
        super().__init__(self.floor, high, start, end)
        every = max(1, math.ceil((high - low) / 6))
        self.ticks = [(10.0**e, f"1e{e}") for e in range(low, high + 1, every)]
        if any(value == 0 for value in values):
            self.ticks.append((0.0, "0"))

    def __call__(self, value: float) -> float:
        return super().__call__(math.log10(value) if value > 0 else self.floor)


def chart(curves: Sequence[Curve], label: str, mark: float | None = None, log: bool = False) -> str:
    """Draw curves over the steps, with a mark at one of them; `label` is for those who cannot see the chart."""
    points = [point for curve in curves for point in curve.points]
    values = [value for _, value in points if _drawable(value)]
    if not points:
        return '<p class="empty">Nothing was recorded.</p>'
    steps = [step for step, _ in points]
    across = _Axis(min(steps), max(steps), _LEFT, _WIDTH - _RIGHT)
    bottom, top = _HEIGHT - _BOTTOM, _TOP
    linear = _Axis(min(values, default=0.0), max(values, default=1.0), bottom, top)
    up = _LogAxis(values, bottom, top) if log else linear
    drawn = [line for curve in curves for line in _curve(curve, across, up)]
    return "\n".join(
        [
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">',
            *_grid(across, up),
            *_mark(mark, across),
            *drawn,
            "</svg>",
        ]
    )


def _drawable(value: float) -> bool:
    return abs(value) < _HUGE  # False for NaN


def _grid(across: _Axis, up: _Axis) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for value, text in up.ticks:
        y = up(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y}" y2="{y}"/>'
        yield f'<text class="tick" x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{text}</text>'
    for value, text in across.ticks:
        if value == int(value):
            x, y = across(value), bottom + 16
            yield f'<text class="tick" x="{x}" y="{y}" text-anchor="middle">{text}</text>'
    yield f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
    yield f'<text class="tick" x="{right}" y="{_HEIGHT - 2}" text-anchor="end">step</text>'


def _mark(step: float | None, across: _Axis) -> Iterator[str]:
    if step is not None and across.low <= step <= across.high:
        x = across(step)
        yield f'<line class="mark" x1="{x}" x2="{x}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}">'
        yield f"<title>the first difference: step {step:g}</title></line>"


def _curve(curve: Curve, across: _Axis, up: _Axis) -> Iterator[str]:
    points = curve.points
    path, begins = [], True
    for step, value in points:
        if _drawable(value):
            path.append(f"{'M' if begins else 'L'}{across(step)} {up(value)}")
        begins = not _drawable(value)
    yield f'<path class="curve {curve.kind}" d="{"".join(path)}"/>'
    few = len(points) <= _DOTS
    for step, value in points:
        x, title = across(step), f"{escape(curve.name)}, step {step:g}: {value:.8g}"
        if not _drawable(value):
            shape = f"M{x - 4} {_TOP - 9}h8l-4 7z"
            yield f'<path class="odd {curve.kind}" d="{shape}"><title>{title}</title></path>'
        elif few:
            y = up(value)
            yield f'<circle class="dot {curve.kind}" cx="{x}" cy="{y}" r="3">'
            yield f"<title>{title}</title></circle>"


def _round_values(low: float, high: float) -> list[float]:
    """Four to eight values that are easy to read."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step)
    count = math.floor((high - first * step) / step + 1e-9) + 1
    return [(first + index) * step for index in range(count)]
