"""Two curves in a few lines of text, for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fsdp_migrate.verify.curves import Point

_WIDTH, _HEIGHT = 60, 8
_FEWEST = 3
"""Of fewer points the table says more."""


def sketch(original: Sequence[Point], migrated: Sequence[Point]) -> list[str]:
    """The lines; `o` is the original, `x` the migrated program, `*` both. None if there is nothing to see."""
    points = [*original, *migrated]
    values = [value for _, value in points if math.isfinite(value)]
    if max(len(original), len(migrated)) < _FEWEST or not values or min(values) == max(values):
        return []
    low, high = min(values), max(values)
    first, last = min(step for step, _ in points), max(step for step, _ in points)
    grid = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    for letter, curve in (("o", original), ("x", migrated)):
        for step, value in curve:
            if math.isfinite(value):
                # Halves first: the distance of two large numbers may be no number.
                share = (value / 2 - low / 2) / (high / 2 - low / 2)
                column = round((step - first) / (last - first) * (_WIDTH - 1))
                row = _HEIGHT - 1 - round(share * (_HEIGHT - 1))
                grid[row][column] = letter if grid[row][column] in (" ", letter) else "*"
    labels = [f"{high:.4g}", *[""] * (_HEIGHT - 2), f"{low:.4g}"]
    margin = max(map(len, labels))
    lines = [
        f"{label:>{margin}} |{''.join(row).rstrip()}"
        for label, row in zip(labels, grid, strict=True)
    ]
    steps = f"{first:g}{f'step {last:g}':>{_WIDTH - len(f'{first:g}')}}"
    key = f"{'':{margin}}  o original, x migrated, * both"
    return [*lines, f"{'':{margin}} +{'-' * _WIDTH}", f"{'':{margin}}  {steps}", key]
