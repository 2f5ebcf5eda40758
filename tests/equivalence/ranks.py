"""Runs cases under several gloo ranks: ``python -m equivalence.ranks RANKS FOLDER``, in ``tests/``."""

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


def run_all(ranks: int, folder: Path) -> None:
    for case in COMPARISONS:
        if ranks in case.ranks:
            record(folder, case.name, partial(_compare, case, case))
    for name, (case, changes, _) in FAULTS.items():
        if ranks == 2:
            fault = dataclasses.replace(case, **changes)
            record(folder, f"fault-{name}", partial(_compare, case, fault))
    for program in PROGRAMS:
        if ranks in program.case.ranks:
            record(folder, program.name, partial(_compare_program, program))
    for name, (at, check) in CHECKS.items():
        if ranks in at:
            record(folder, name, check)


def _compare(theirs: Case, ours: Case) -> dict[str, Any]:
    return compare(run_fsdp1(theirs), run_ours(ours))


def _compare_program(program: Program) -> dict[str, Any]:
    original = program.source.replace(*program.fsdp1)
    with fsdp1_on_cpu():  # nor can FSDP2 pin memory without a device
        theirs = run_source(program.case, original, full_fsdp1)
        ours = run_source(program.case, swap(program.source), full_fsdp2)
    return compare(theirs, ours)


def main(ranks: int, folder: Path) -> None:
    run_ranks(ranks, folder, lambda rank: run_all(ranks, folder))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
