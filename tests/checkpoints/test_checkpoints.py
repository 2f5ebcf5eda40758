"""Checkpoints of FSDP1, taken up by the bridge and in place, and the other way.

Who goes on from a checkpoint, whoever wrote it, has the losses of FSDP1 that was never interrupted.
"""

import pytest

from ..launch import Results
from .checks import CHECKS
from .ranks import FORMS, RANKS, RESUMED, STEPS
from .ways import FAULTS, WAYS

pytestmark = pytest.mark.ranks

# What others and tests/behaviour show of them, too.
MARKS = dict.fromkeys(("ties", "type", "shards-flat"), pytest.mark.thorough)


@pytest.mark.parametrize("run", [*FORMS, *(f"{form} of {of}" for form, of in RESUMED)])
@pytest.mark.parametrize("way", [pytest.param(way, marks=MARKS.get(way, ())) for way in WAYS])
def test_trains_like_the_original(results: Results, way: str, run: str) -> None:
    found, whole = results[f"{way}.{run}"], results[f"{way}.original"]
    assert [result.get("error") for result in found] == [None] * RANKS
    for result, unbroken in zip(found, whole, strict=True):
        assert len(set(unbroken["losses"])) == 2 * STEPS
        assert result["losses"] == unbroken["losses"][STEPS if " of " in run else 0 :]


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found(results: Results, fault: str) -> None:
    found, whole = results[f"fault-{fault}"], results[f"{FAULTS[fault][0]}.original"]
    for result, unbroken in zip(found, whole, strict=True):
        assert result["losses"][-1] != unbroken["losses"][-1]


@pytest.mark.parametrize("check", CHECKS)
def test_check(results: Results, check: str) -> None:
    assert [result.get("error") for result in results.get(f"check-{check}", [])] == [None] * RANKS
