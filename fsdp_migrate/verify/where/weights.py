"""The weights and gradients of a model, and how far it moved: each rank wrote its part, added up they have the same norms."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from fsdp_migrate.verify.where.traces import Row, Trace, below

SUFFIXES = (".<weights>", ".<gradients>", ".<moved>")
"""Names of no attribute: a program may have `args.weights`."""

UNREDUCED = "unreduced"
"""The form of gradients that are not the ranks' sum yet."""

_NOISE = 1e-10
"""A square that is so much smaller than the largest one is rounding."""

Place = tuple[str, int, str, int, int, int, str]
"""File, first line and name of a function, the number of the call, a line, how often it ran in the call, a variable."""


def add_up(traces: dict[int, Trace]) -> None:
    """Put the norms of the weights in the place of each rank's parts, where all ranks ran the same line equally often."""
    ranks = [
        {place: (row, form) for place, row, form in _states(trace)} for trace in traces.values()
    ]
    common: set[Place] = set()
    if ranks:
        common = set(ranks[0]).intersection(*ranks[1:])
    odd = _ran_otherwise([*traces.values()])
    common = {place for place in common if place[:5] not in odd}
    for rank in ranks:
        for row, _ in rank.values():
            for name in [name for name in row.values if name.endswith(SUFFIXES)]:
                del row.values[name]
    norms = {place: _norms([rank[place][1] for rank in ranks]) for place in common}
    for rank in ranks:
        last: dict[tuple[object, ...], str] = {}
        for place, (row, _) in rank.items():
            variable = (*place[:4], place[6])
            if place in norms and last.get(variable) != norms[place]:
                last[variable] = row.values[place[6]] = norms[place]


Call = tuple[str, int, str, int]
"""File, first line and name of a function, the number of the call."""


def _ran_otherwise(traces: list[Trace]) -> set[tuple[str, int, str, int, int]]:
    """The lines of ended calls that ran more often on one rank than on another: one may have no part of a parameter."""
    counts = [*map(_counts, traces)]
    ended = [{place[:4] for place in count} for count in counts]
    common = set[Call]().union(*ended[:1]).intersection(*ended)
    places = {place for count in counts for place in count if place[:4] in common}
    return {place for place in places if len({count[place] for count in counts}) > 1}


def _counts(trace: Trace) -> Counter[tuple[str, int, str, int, int]]:
    """How often each line ran in each call that has ended."""
    calls: Counter[tuple[str, int, str]] = Counter()
    found: Counter[tuple[str, int, str, int, int]] = Counter()
    for frame in below(trace.frames):
        function = frame.file, frame.first, frame.name
        calls[function] += 1
        if frame.rows and frame.rows[-1].kind in ("return", "raise"):
            found.update([(*function, calls[function], row.line) for row in frame.rows])
    return found


def _norms(parts: list[str]) -> str:
    if UNREDUCED in parts:
        return UNREDUCED
    squares: dict[str, float] = {}
    for item in " ".join(parts).split():
        name, _, square = item.rpartition("=")
        squares[name] = squares.get(name, 0.0) + float(square)
    least = _NOISE * max(squares.values(), default=0.0)
    kept = sorted([item for item in squares.items() if item[1] > least])
    return ", ".join(f"{name} {math.sqrt(square):.5g}" for name, square in kept)


def _states(trace: Trace) -> Iterator[tuple[Place, Row, str]]:
    """For each row of a function that has such a model, what the rank holds of its weights then."""
    calls: Counter[tuple[str, int, str]] = Counter()
    for frame in below(trace.frames):
        function = frame.file, frame.first, frame.name
        calls[function] += 1
        ran: Counter[int] = Counter()
        known: dict[str, str] = {}
        for row in frame.rows:
            ran[row.line] += 1
            known.update([(n, form) for n, form in row.values.items() if n.endswith(SUFFIXES)])
            for name, form in known.items():
                yield (*function, calls[function], row.line, ran[row.line], name), row, form
