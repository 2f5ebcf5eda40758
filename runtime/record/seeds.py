"""The same start for both programs: what Python seeds at random gets a fixed seed.

torch starts from a fixed seed by itself; Python's and numpy's generators do not. A program that
seeds them is not affected.
"""

from __future__ import annotations

import random
from typing import Any

from . import imports

SEED = 0


def install() -> None:
    """Seed `random` now and numpy's global generator when the program imports numpy."""
    random.seed(SEED)
    imports.after("numpy", _seed_numpy)


def _seed_numpy(numpy: Any) -> None:
    numpy.random.seed(SEED)
