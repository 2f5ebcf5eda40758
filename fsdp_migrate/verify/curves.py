"""The numbers of two runs as curves over the optimizer steps."""

from __future__ import annotations

import itertools
from collections import Counter

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
    """The place of each loss on the axis of steps: the last backward of step 3 is at 3, the others are before it."""
    steps = max((rank.loss_steps for rank in run.ranks), key=len, default=[])
    several = Counter(steps)
    seen: Counter[int] = Counter()
    found = []
    for step in steps:
        seen[step] += 1
        found.append(step - 1 + seen[step] / several[step])
    return found


def columns(run: Run) -> list[list[float]]:
    """For each backward, the losses of all ranks that have one."""
    rows = itertools.zip_longest(*(rank.losses for rank in run.ranks))
    return [[loss for loss in row if loss is not None] for row in rows]
