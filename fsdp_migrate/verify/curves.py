"""The numbers of two runs as curves over the optimizer steps, and long curves made short."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

from fsdp_migrate.verify.compare import distance, farthest
from fsdp_migrate.verify.records import Run

Point = tuple[float, float]
"""A step, counted from 1, and a value, which may be NaN or infinite."""


def losses(run: Run) -> list[Point]:
    """The mean of the ranks' losses; the backwards of one step share its unit of length."""
    return [
        (place, sum(values) / len(values))
        for place, values in zip(places(run), columns(run), strict=True)
    ]


def loss_gaps(original: Run, migrated: Run) -> list[Point]:
    """The largest difference of two losses over the ranks."""
    both = zip(places(original), columns(original), columns(migrated), strict=False)
    return [(place, farthest(ones, others) or 0.0) for place, ones, others in both]


def norms(run: Run) -> list[Point]:
    """The global gradient norm."""
    return [(float(step), norm) for step, norm in enumerate(run.grad_norms, 1)]


def norm_gaps(original: Run, migrated: Run) -> list[Point]:
    """The difference of the gradient norms."""
    both = zip(original.grad_norms, migrated.grad_norms, strict=False)
    return [(float(step), distance(a, b)) for step, (a, b) in enumerate(both, 1)]


def places(run: Run) -> list[float]:
    """Where each loss is on the axis: the last backward of step 3 at 3, the one before it somewhat earlier."""
    steps = max((rank.loss_steps for rank in run.ranks), key=len, default=[])
    several = Counter(steps)
    seen: Counter[int] = Counter()
    found = []
    for step in steps:
        seen[step] += 1
        found.append(step - 1 + seen[step] / several[step])
    return found


def thin(points: Sequence[Point], limit: int) -> list[Point]:
    """About `limit` points at most that look the same: of every stretch the lowest and the highest.

    What is no number stays visible: of every stretch the first such point is kept.
    """
    if len(points) <= limit:
        return list(points)
    kept = {0, len(points) - 1}
    stretch = max(2 * len(points) // limit, 1)
    for start in range(0, len(points), stretch):
        indices = range(start, min(start + stretch, len(points)))
        finite = [i for i in indices if math.isfinite(points[i][1])]
        if finite:
            kept |= {
                min(finite, key=lambda i: points[i][1]),
                max(finite, key=lambda i: points[i][1]),
            }
        if len(finite) < len(indices):
            kept.add(next(i for i in indices if not math.isfinite(points[i][1])))
    return [points[index] for index in sorted(kept)]


def columns(run: Run) -> list[list[float]]:
    """For each backward the losses of all ranks that went so far."""
    rows = itertools.zip_longest(*(rank.losses for rank in run.ranks))
    return [[loss for loss in row if loss is not None] for row in rows]
