"""Runs cases under several gloo ranks: ``python -m equivalence.ranks RANKS FOLDER [again]``, in ``tests/``."""

from __future__ import annotations

import dataclasses
import sys
from functools import partial
from pathlib import Path
from typing import Any

from forked import record, run_ranks

from . import faults, loop, silent, summon, surroundings  # noqa: F401  (they register their checks)
from .cases import COMPARISONS, FAULTS
from .checks import CHECKS
from .programs import PROGRAMS, Program
from .swapped import swap
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


def run_all(ranks: int, folder: Path, again: bool) -> None:
    """Runs what is for that many ranks, or what that many show ``again``."""

    def is_due(numbers: tuple[int, ...]) -> bool:
        return ranks in (numbers[1:] if again else numbers[:1])

    for case in COMPARISONS:
        if is_due(case.ranks):
            record(folder, case.name, partial(_compare, case, case))
    for name, (case, changes, _) in FAULTS.items():
        if is_due((2,)):
            fault = dataclasses.replace(case, **changes)
            record(folder, f"fault-{name}", partial(_compare, case, fault))
    for program in PROGRAMS:
        if is_due(program.case.ranks):
            record(folder, program.name, partial(_compare_program, program))
    for name, (at, check) in CHECKS.items():
        if is_due(at):
            record(folder, name, check)


def _compare(theirs: Case, ours: Case) -> dict[str, Any]:
    return compare(run_fsdp1(theirs), run_ours(ours))


def _compare_program(program: Program) -> dict[str, Any]:
    original = program.source.replace(*program.fsdp1)
    with fsdp1_on_cpu():  # nor can FSDP2 pin memory without a device
        theirs = run_source(program.case, original, full_fsdp1)
        ours = run_source(program.case, swap(program.source), full_fsdp2)
    return compare(theirs, ours)


def main(ranks: int, folder: Path, again: bool) -> None:
    run_ranks(ranks, folder, lambda rank: run_all(ranks, folder, again))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] == ["again"])
