"""Checkpoints of FSDP1 programs, taken up by the same programs on the bridge, and the other way.

A program that goes on from a checkpoint, whoever wrote it, has the losses of the original that was never interrupted.
"""

from __future__ import annotations

import pytest

from ..launch import Results
from .checks import CHECKS
from .programs import FAULTS, ORIGINAL, RUNS, Run
from .ranks import RANKS

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize(
    "run",
    [run for run in RUNS if not run.fault and run.form + run.of != ORIGINAL],
    ids=lambda run: run.name,
)
def test_trains_like_the_original(results: Results, run: Run) -> None:
    found = results.get(run.name, [])
    assert [result.get("error") for result in found] == [None] * RANKS
    whole = results[Run(run.program, ORIGINAL).name]
    for result, unbroken in zip(found, whole, strict=True):
        assert len(set(unbroken["losses"].values())) == len(unbroken["losses"]) == 4
        assert len(result["losses"]) == (2 if run.of else 4)
        assert result["losses"] == {step: unbroken["losses"][step] for step in result["losses"]}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found(results: Results, fault: str) -> None:
    (run,) = [run for run in RUNS if run.fault == fault and run.of]
    found, whole = results[run.name], results[Run(run.program, ORIGINAL).name]
    for result, unbroken in zip(found, whole, strict=True):
        assert FAULTS[fault].error in result.get("error", "")
        assert FAULTS[fault].error or result["losses"]["3"] != unbroken["losses"]["3"]


@pytest.mark.parametrize("check", CHECKS)
def test_check(results: Results, check: str) -> None:
    assert [result.get("error") for result in results.get(f"check-{check}", [])] == [None] * RANKS
