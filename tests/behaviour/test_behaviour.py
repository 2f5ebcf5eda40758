"""What PyTorch's own tests assert of FSDP1, asserted of the bridge and in place beside FSDP1."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
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


@pytest.mark.parametrize("form", ["bridge", "in place"])
@pytest.mark.parametrize("behaviour", parameters(EVERY))
def test_holds(results: Run, behaviour: Behaviour, form: str) -> None:
    """Or cannot, as its decorator says."""
    if behaviour.since and release(version("torch")) < release(behaviour.since):
        pytest.skip(f"FSDP1 does so since {behaviour.since}")
    found = results(behaviour.ranks).get(behaviour.name, [])
    assert len(found) == behaviour.ranks, "not every rank finished"
    for result in found:
        assert "error" not in result, f"FSDP1 does not behave so:\n{result['error']}"
    own = [result[form] for result in found]
    if behaviour.refusal:
        assert all(behaviour.refusal in each.get("refusal", "no error") for each in own)
    elif behaviour.cannot or (form == "in place" and behaviour.in_place):
        assert any(map(differs, own)), "it holds: say so in its decorator"
    else:
        for each in own:
            assert "refusal" not in each, each["trace"]
            assert each["differences"] == []


def release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def differs(result: dict[str, Any]) -> bool:
    return bool(result.get("refusal") or result["differences"])


@pytest.mark.ranks
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(results: Run, fault: str) -> None:
    found = results(2).get(f"fault.{fault}", [])
    assert len(found) == 2
    assert all("error" not in result for result in found)
    assert any(differs(result[FAULTS[fault].form]) for result in found)


def test_the_page_is_current() -> None:
    """Written by ``python -m behaviour.page``, in ``tests/``."""
    assert PAGE.read_text() == render()


def test_every_behaviour_is_a_sentence() -> None:
    for behaviour in EVERY:
        assert behaviour.sentence[-1] == "."
