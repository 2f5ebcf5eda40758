"""What must differ between a program of FSDP1 and its migration, as it has other parameters."""

from __future__ import annotations

import re

from fsdp_migrate.verify.where.forms import (
    Grade,
    grade,
    moved_alike,
    other_counts,
    same_but_for_copies,
)
from fsdp_migrate.verify.where.rows import Unit
from fsdp_migrate.verify.where.scope import Scope, over_parameters_in

_EMPTY = "dict of 0 ()"
_STATES = re.compile(r"dict of \d+ \('[^']+': (tensor |list of |dict of )")

_APART = 1e-2
"""How far the norms of weights are apart that are not counted alike."""


def is_known(scope: Scope, a: Unit, b: Unit, name: str) -> bool:
    """Whether a variable differs as it must, for there are other parameters under FSDP1, or copies of them."""
    old = scope.old[name]
    new = scope.new[name]
    if name.endswith(".<weights>") and same_but_for_copies(old, new):
        return True
    if name.endswith(".<moved>"):
        # Where the weights differ, or are counted otherwise, that is said of them.
        weights = name.replace(".<moved>", ".<weights>")
        both = scope.old.get(weights, ""), scope.new.get(weights, "")
        return grade(*both, _APART) == Grade.OTHER or moved_alike(old, new)
    if scope.frame.name == "<genexpr>" and not a.key[1]:
        return True  # one of many values: what the expression makes of them counts
    if scope.rank > 0 and _EMPTY in (old, new) and _STATES.match(max(old, new, key=len)):
        return True  # a whole state dict, which the first rank has
    # A collection of what each parameter gives is as long as they are many.
    statement = scope.statement(a)
    return (
        statement.loops and other_counts(old, new) and over_parameters_in(statement, scope, [a, b])
    )
