"""Programs in the styles of real code print the same under FSDP1 and on the bridge.

They were not written for this tool: trainer classes and registries, EMA copies, two models, LoRA, names with prefixes,
checkpoints of every kind, optimizers built first, hybrid sharding, offloading. Of what they print, the lines that begin
with ``R`` are compared, rank by rank. They ask for CUDA and NCCL, which `verify` emulates.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdp_migrate.verify.folders import Program, copy_program
from fsdp_migrate.verify.launch import Launcher
from fsdp_migrate.verify.main import run_program
from fsdp_migrate.verify.recording import Recording

from .swap import swap_imports

PROGRAMS = Path(__file__).parent / "programs"

# One of a kind each; the others are for `make thorough`.
CHOSEN = {"02", "07", "10", "12", "26", "55", "65", "76", "78", "83", "88", "92"}

# What a case prints otherwise on the bridge, and the rule that reports it.
DIFFERENT: dict[str, str] = {}

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked")]


def cases() -> Iterator[object]:
    """Every program with every line of its ``ARGS``."""
    for folder in sorted(PROGRAMS.iterdir()):
        marks = [] if folder.name in CHOSEN else [pytest.mark.thorough]
        for line in (_setting(folder, "ARGS") or "\n").splitlines():
            yield pytest.param(
                folder.name, shlex.split(line), id=f"{folder.name} {line}".strip(), marks=marks
            )


def _setting(folder: Path, name: str, default: str = "") -> str:
    file = folder / name
    return file.read_text("utf-8") if file.exists() else default


def results(program: Program, case: str, arguments: list[str], folder: Path) -> list[list[str]]:
    """The lines with results that each rank prints."""
    ranks = int(_setting(PROGRAMS / case, "NPROC", "2"))
    how = Recording(canonical=True, emulate=ranks)
    run = run_program(program, Launcher.TORCHRUN, ranks, arguments, "cpu", 60, folder, how)
    return [
        [line for line in rank.output.splitlines() if line.startswith("R ")] for rank in run.ranks
    ]


@pytest.mark.parametrize(("case", "arguments"), [*cases()])
def test_a_case_prints_the_same_on_the_bridge(
    case: str, arguments: list[str], tmp_path: Path
) -> None:
    script = PROGRAMS / case / "train.py"
    before, after = (
        copy_program(name, script, None, tmp_path / name / "copy")
        for name in ("original", "migrated")
    )
    swap_imports(after.root)
    expected = results(before, case, arguments, tmp_path)
    assert all(expected), "every rank prints results"
    found = results(after, case, arguments, tmp_path)
    if case in DIFFERENT:
        assert found != expected, f"{case} is the same now: DIFFERENT need not name it"
    else:
        assert found == expected
