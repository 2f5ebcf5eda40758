"""The order of the names in `from m import a, b`, and the place of a new name in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

SortKey = Callable[[str], tuple[object, ...]]


def _natural(name: str) -> tuple[object, ...]:
    """`layer2` before `layer10`."""
    # Digits and other text alternate, so that equal places hold the same type.
    return tuple(int(part) if i % 2 else part for i, part in enumerate(re.split(r"(\d+)", name)))


def isort_key(name: str) -> tuple[object, ...]:
    """isort's and ruff's default: CONSTANTS, Classes, functions; each without regard to case."""
    constant = name.isupper() and len(name) > 1
    kind = 0 if constant else 1 if name[:1].isupper() else 2
    return (kind, _natural(name.lower()), name)


def _any_case(name: str) -> tuple[object, ...]:
    return (_natural(name.lower()), name)


def _case_sensitive(name: str) -> tuple[object, ...]:
    return (name,)


def order_of(names: Sequence[str]) -> SortKey | None:
    """The order that `names` are in, None if in none that is known. A single name is in isort's."""
    for key in (isort_key, _any_case, _case_sensitive):
        if all(key(first) <= key(second) for first, second in pairwise(names)):
            return key
    return None


def place_in(names: Sequence[str], name: str, key: SortKey) -> int:
    """The index at which `name` goes into the sorted `names`; in front of `name as other`."""
    return next((i for i, other in enumerate(names) if key(other) >= key(name)), len(names))
