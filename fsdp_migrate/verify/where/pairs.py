"""What is shown of a difference: both values, and of weights those that differ."""

from __future__ import annotations

from fsdp_migrate.verify.where.lines import MEET, Pair
from fsdp_migrate.verify.where.rows import Unit
from fsdp_migrate.verify.where.scope import Scope
from fsdp_migrate.verify.where.weights import SUFFIXES

MOST_PAIRS = 3
"""At most so many values of a line."""


def pair_of(name: str, old: str, new: str) -> Pair:
    """What differs; of weights only those that do."""
    if not name.endswith(SUFFIXES):
        return Pair(name, old, new)
    items = [[item.rpartition(" ") for item in text.split(", ")] for text in (old, new)]
    norms = [{name: norm for name, _, norm in side} for side in items]
    both = {**norms[0], **norms[1]}
    names = [name for name in both if name and norms[0].get(name) != norms[1].get(name)]
    texts = [
        ", ".join(f"{name} {side.get(name, 'none')}" for name in names[:MOST_PAIRS])
        for side in norms
    ]
    return Pair(name, texts[0], texts[1])


def first_of(scope: Scope, rest: list[Unit]) -> str:
    """The line that a program went on at."""
    if not rest:
        return MEET
    line, ends = rest[0].key
    if ends and not line:
        return "the end of the function"
    return f"line {line}: {scope.file.source(line)}"
