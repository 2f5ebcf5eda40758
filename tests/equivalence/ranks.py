"""Runs cases under several gloo ranks: ``python -m tests.equivalence.ranks RANKS FOLDER``.

Ranks are forked from a process that has imported torch, which takes a tenth of the time of fresh
interpreters, and leave by ``os._exit``: a finished FSDP1 process may abort at interpreter exit.
Each rank writes the result of each case before it starts the next.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
import time
import traceback
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # FSDP2 imports it at first use: once here instead of once a rank
import torch.distributed as dist

from . import loop, silent, summon, surroundings  # noqa: F401  (they register their checks)
from .cases import COMPARISONS, FAULTS
from .checks import CHECKS
from .programs import FAULTS as PROGRAM_FAULTS
from .programs import PROGRAMS, Program
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


def run_rank(rank: int, ranks: int, folder: Path, migrated: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), ranks)
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timeout)
    for case in COMPARISONS:
        if ranks in case.ranks:
            _record(folder, rank, case.name, partial(_compare, case, case))
    for name, (case, changes, _) in FAULTS.items():
        if ranks == 2:
            fault = dataclasses.replace(case, **changes)
            _record(folder, rank, f"fault-{name}", partial(_compare, case, fault))
    for program in PROGRAMS:
        if ranks in program.case.ranks:
            source = (migrated / f"{program.name}.py").read_text()
            _record(folder, rank, program.name, partial(_compare_program, program, source))
    for name, fault in PROGRAM_FAULTS.items():
        if ranks == 2:
            source = fault.plant((migrated / f"{fault.program.name}.py").read_text())
            run = partial(_compare_program, fault.program, source)
            _record(folder, rank, f"program-fault-{name}", run)
    for name, (at, check) in CHECKS.items():
        if ranks in at:
            _record(folder, rank, name, check)


def _compare(theirs: Case, ours: Case) -> dict[str, Any]:
    return compare(run_fsdp1(theirs), run_ours(ours))


def _compare_program(program: Program, migrated: str) -> dict[str, Any]:
    original = program.source.replace(*program.fsdp1)
    with fsdp1_on_cpu():  # nor can FSDP2 pin memory without a device
        theirs = run_source(program.case, original, full_fsdp1)
        ours = run_source(program.case, migrated, full_fsdp2)
    return compare(theirs, ours)


def _record(folder: Path, rank: int, name: str, run: Any) -> None:
    start = time.perf_counter()
    try:
        result = run() or {}
    except Exception:
        result = {"error": traceback.format_exc()}
    result["seconds"] = time.perf_counter() - start
    (folder / f"{name}.{rank}.json").write_text(json.dumps(result))
    if "error" in result and "Gloo" in result["error"]:  # a peer is gone: nothing can follow
        os._exit(1)


def main(ranks: int, folder: Path, migrated: Path) -> None:
    gc.freeze()  # what is imported is never garbage; it makes every later collection fast
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            try:
                run_rank(rank, ranks, folder, migrated)
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), *map(Path, sys.argv[2:]))
