"""What PyTorch's own tests assert of FSDP1, asserted of the bridge beside FSDP1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ..launch import Results
from . import areas  # noqa: F401  (registers the behaviours)
from .faults import FAULTS
from .page import PAGE, render
from .registry import BEHAVIOURS, Behaviour

Run = Callable[[int], Results]
EVERY = list(BEHAVIOURS.values())


def parameters(behaviours: list[Behaviour]) -> list[Any]:
    """More than two ranks on two cores take their time: they are for ``make thorough``."""
    marks = {2: [pytest.mark.ranks], 4: [pytest.mark.thorough]}
    return [pytest.param(b, id=b.name, marks=marks[b.ranks]) for b in behaviours]


@pytest.mark.parametrize("behaviour", parameters([b for b in EVERY if not b.cannot]))
def test_holds(results: Run, behaviour: Behaviour) -> None:
    found = results(behaviour.ranks).get(behaviour.name, [])
    assert len(found) == behaviour.ranks, "not every rank finished"
    for result in found:
        assert "error" not in result, f"FSDP1 does not behave so:\n{result['error']}"
        assert "refusal" not in result, result["trace"]
        assert result["differences"] == []


@pytest.mark.parametrize("behaviour", parameters([b for b in EVERY if b.cannot]))
def test_cannot_hold(results: Run, behaviour: Behaviour) -> None:
    found = results(behaviour.ranks).get(behaviour.name, [])
    assert len(found) == behaviour.ranks, "not every rank finished"
    for result in found:
        assert "error" not in result, f"FSDP1 does not behave so:\n{result['error']}"
        if behaviour.refusal:
            assert behaviour.refusal in result.get("refusal", "no error")
        else:
            assert result["differences"], "it holds: say so in its decorator"


@pytest.mark.ranks
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(results: Run, fault: str) -> None:
    found = results(2).get(f"fault.{fault}", [])
    assert len(found) == 2
    assert all("error" not in result for result in found)
    assert any(result.get("refusal") or result["differences"] for result in found)


def test_the_page_is_current() -> None:
    """Written by ``python -m behaviour.page``, in ``tests/``."""
    assert PAGE.read_text() == render()


def test_every_behaviour_is_a_sentence() -> None:
    for behaviour in EVERY:
        assert behaviour.sentence[-1] == "."
