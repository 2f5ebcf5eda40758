"""Checkpoints of FSDP1 programs, taken up by what becomes of the programs, and the other way.

A program that goes on from a checkpoint, whoever wrote it, has the losses of the original that was never interrupted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ..launch import Results
from .checks import CHECKS
from .programs import FAULTS, FIRST, FIRST_STEPS, PROGRAMS, RUNS, Program, Run, form
from .ranks import RANKS

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_form(migrated: Path, program: Program) -> None:
    source = (migrated / f"{program.name}.py").read_text()
    assert "FullyShardedDataParallel" not in source
    assert form(source) == program.form, source
    # One name for what is loaded and what becomes of it: the former function stays, and the runtime takes what it gives.
    assert ("by hand" in source) == (program.name == "sharded-flat")


@pytest.mark.parametrize("name", FIRST_STEPS)
def test_the_first_step_moves_no_model(migrated: Path, name: str) -> None:
    source = (migrated / f"{name}.{FIRST}.py").read_text()
    assert "model = FSDP(model" in source
    assert "set_model_state_dict(" in source
    assert "set_optimizer_state_dict(" in source
    assert "state_dict_type" not in source


@pytest.mark.parametrize(
    "run",
    [run for run in RUNS if not run.fault and run.form + run.of != "original"],
    ids=lambda run: run.name,
)
def test_trains_like_the_original(results: Results, run: Run) -> None:
    found = results.get(run.name, [])
    assert [result.get("error") for result in found] == [None] * RANKS
    whole = results[Run(run.program, "original").name]
    for result, unbroken in zip(found, whole, strict=True):
        assert len(set(unbroken["losses"].values())) == len(unbroken["losses"]) == 4
        assert len(result["losses"]) == (2 if run.of else 4)
        assert result["losses"] == {step: unbroken["losses"][step] for step in result["losses"]}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found(results: Results, fault: str) -> None:
    (run,) = [run for run in RUNS if run.fault == fault and run.of]
    found, whole = results[run.name], results[Run(run.program, "original").name]
    for result, unbroken in zip(found, whole, strict=True):
        assert FAULTS[fault].error in result.get("error", "")
        assert FAULTS[fault].error or result["losses"]["3"] != unbroken["losses"]["3"]


@pytest.mark.parametrize("check", CHECKS)
def test_check(results: Results, check: str) -> None:
    assert [result.get("error") for result in results.get(f"check-{check}", [])] == [None] * RANKS
