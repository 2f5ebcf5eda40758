"""Runs the programs and the checks on several gloo ranks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ..forked import record, run_ranks
from .checks import CHECKS
from .programs import RUNS, Run
from .training import run

RANKS = 2


def run_all(folder: Path) -> None:
    for each in RUNS:
        record(folder, each.name, partial(losses, each, folder))
    for name, check in CHECKS.items():
        record(folder, f"check-{name}", check)


def losses(each: Run, folder: Path) -> dict[str, Any]:
    """The losses by step; of a run that goes on, from the checkpoint on."""
    batch = each.program.model.batch
    return {"losses": run(each.source, batch, folder / each.folder, bool(each.of))}


def main(folder: Path) -> None:
    run_ranks(RANKS, folder, lambda rank: run_all(folder))
