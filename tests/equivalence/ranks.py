"""Runs cases under several gloo ranks: ``python -m equivalence.ranks RANKS FOLDER [again] [NAME...]``, in ``tests/``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from forked import record, run_ranks
from in_place import IN_PLACE, units_alone

from fsdp_migrate.runtime import FullyShardedDataParallel

from .cases import COMPARISONS, FAULTS
from .checks import CHECKS
from .plain import FAULTS as PLAIN_FAULTS
from .plain import PLAIN, Program
from .swapped import plain
from .train import (
    Case,
    compare,
    fsdp1_on_cpu,
    full_fsdp1,
    full_fsdp2,
    run_fsdp1,
    run_ours,
    run_source,
)

FORMS = {"in place": IN_PLACE.FullyShardedDataParallel, "torch": units_alone}


def run_all(ranks: int, folder: Path, again: bool, names: set[str]) -> None:
    """Runs what is for that many ranks, or what that many show ``again``; only what is in ``names``, if that is not empty."""
    every: list[tuple[str, tuple[int, ...], Callable[[], Any]]] = []
    every += [(case.name, case.ranks, partial(_compare, case, case)) for case in COMPARISONS]
    for name, (case, changes, _) in FAULTS.items():
        fault = dataclasses.replace(case, **changes)
        every.append((f"fault-{name}", (2,), partial(_compare, case, fault)))
    every += [(p.name, p.case.ranks, partial(_compare_plain, p)) for p in PLAIN]
    for name, (of, right, wrong, _) in PLAIN_FAULTS.items():
        program = next(each for each in PLAIN if each.name == of)
        every.append((f"fault-{name}", (2,), partial(_compare_plain, program, (right, wrong))))
    every += [(name, at, check) for name, (at, check) in CHECKS.items()]
    for name, at, run in every:
        if ranks in (at[1:] if again else at[:1]) and (not names or name in names):
            record(folder, name, run)


def _compare(theirs: Case, ours: Case) -> dict[str, Any]:
    expected = run_fsdp1(theirs)
    found = compare(expected, run_ours(ours))
    for form, constructor in FORMS.items():
        if ours.ours is FullyShardedDataParallel:
            found[form] = compare(expected, run_ours(dataclasses.replace(ours, ours=constructor)))
    return found


def _compare_plain(program: Program, fault: tuple[str, str] = ("", "")) -> dict[str, Any]:
    after = plain(program.source)
    assert fault[0] in after, after
    with fsdp1_on_cpu():
        theirs = run_source(program.case, program.source, full_fsdp1)
        ours = run_source(program.case, after.replace(*fault), full_fsdp2)
    return compare(theirs, ours)


def main(ranks: int, folder: Path, words: set[str]) -> None:
    names = words - {"again"}
    run_ranks(ranks, folder, lambda rank: run_all(ranks, folder, "again" in words, names))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), {*sys.argv[3:]})
