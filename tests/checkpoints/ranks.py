"""Runs the programs and the checks on several gloo ranks, forked from a process that has imported torch.

Each rank writes the result of each run before it starts the next, and leaves by ``os._exit``: a finished FSDP1 process
may abort at interpreter exit.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # FSDP2 imports it at first use: once here instead of once a rank
import torch.distributed as dist

from .checks import CHECKS
from .programs import RUNS, Run
from .training import run

RANKS = 2


def run_rank(rank: int, folder: Path, migrated: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), RANKS)
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timeout)
    for each in RUNS:
        _record(folder / f"{each.name}.{rank}.json", partial(losses, each, folder, migrated))
    for name, check in CHECKS.items():
        _record(folder / f"check-{name}.{rank}.json", check)


def losses(each: Run, folder: Path, migrated: Path) -> dict[str, Any]:
    """The losses by step; of a run that goes on, from the checkpoint on."""
    batch = each.program.model.batch
    return {"losses": run(each.source(migrated), batch, folder / each.folder, bool(each.of))}


def _record(path: Path, function: Callable[[], dict[str, Any] | None]) -> None:
    start = time.perf_counter()
    try:
        result = function() or {}
    except Exception:
        result = {"error": traceback.format_exc()}
    result["seconds"] = time.perf_counter() - start
    path.write_text(json.dumps(result))
    if "Gloo" in result.get("error", ""):  # a peer is gone: nothing can follow
        os._exit(1)


def main(folder: Path, migrated: Path) -> None:
    gc.freeze()  # what is imported is never garbage; it makes every later collection fast
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            try:
                run_rank(rank, folder, migrated)
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
