"""What PyTorch's own tests assert of FSDP1, asserted of the bridge and in place beside FSDP1."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from ..launch import Results, launch, results_in
from . import areas  # noqa: F401  (registers the behaviours)
from .checks import CHECKS
from .faults import FAULTS
from .page import PAGE, render
from .registry import BEHAVIOURS, Behaviour

Run = Callable[[int], Results]
EVERY = list(BEHAVIOURS.values())


# More than two ranks on two cores take their time: they are for ``make thorough``.
MARKS = {2: [pytest.mark.ranks], 4: [pytest.mark.thorough]}

# Areas about what the runtime does by the same functions for both forms. There the bridge is for ``make thorough``, but for
# what holds on it alone; its constructor, its forward and its state dict, which are its own, are in the others. Nor does it
# take part in how the tool writes constructors: there only its imports change.
SHARED = {
    "accumulation",
    "clipping",
    "constructors",
    "grad_scaler",
    "ignored",
    "initialization",
    "older_optimizer_states",
    "optimizer_parameters",
    "optimizers",
    "precision",
    "precision_of_inputs",
    "programs",
    "state_dict_types",
    "trained_parameters",
    "uses",
    "uses_of_state_dicts",
    "whole_parameters",
    "writeback",
}


def marks(behaviour: Behaviour, form: str) -> list[pytest.MarkDecorator]:
    again = form == "bridge" and not behaviour.in_place
    shared = behaviour.name.partition(".")[0] in SHARED
    return [*MARKS[behaviour.ranks], *[pytest.mark.thorough] * (again and shared)]


# Programs that are left to fully_shard alone, by area or name, and form.
OF_TORCH_ALONE = {
    ("constructors", "bridge"),
    ("uses", "torch"),
    ("uses_of_state_dicts", "torch"),
    ("uses_of_state_dicts.a_file_of_each_rank", "bridge"),
}
GLOO_ADDS_UP = (2, 8)
IN_BFLOAT16 = ("outside_of_forward", "torch")
ADDS_UP_IN_FLOAT32 = (2, 15)

# It compiles seven models.
LONG = {"compiling_first_or_last_trains_the_same"}


@pytest.mark.parametrize(
    ("behaviour", "form"),
    [
        pytest.param(b, form, id=f"{b.name}-{form}", marks=marks(b, form))
        for b in EVERY
        for form in ("bridge", "in place", *["torch"] * b.torch)
    ],
)
def test_holds(results: Run, behaviour: Behaviour, form: str) -> None:
    """Or cannot, as its decorator says."""
    if behaviour.since and release(version("torch")) < release(behaviour.since):
        pytest.skip(f"FSDP1 does so since {behaviour.since}")
    area = behaviour.name.partition(".")[0]
    is_torch_alone = not OF_TORCH_ALONE.isdisjoint([(area, form), (behaviour.name, form)])
    if is_torch_alone and release(version("torch")) == GLOO_ADDS_UP:
        pytest.skip("gloo adds gradients up, where fully_shard wants their mean (pytorch#162338)")
    if (area, form) == IN_BFLOAT16 and release(version("torch")) >= ADDS_UP_IN_FLOAT32:
        pytest.skip("fully_shard adds up a loss's gradients in float32, FSDP1 in bfloat16")
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


# What they show of the behaviours changes with these alone.
@pytest.mark.thorough
@pytest.mark.ranks
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(results: Run, fault: str) -> None:
    ranks = FAULTS[fault].behaviour.ranks
    found = results(ranks).get(f"fault.{fault}", [])
    assert len(found) == ranks
    assert all("error" not in result for result in found)
    assert any(differs(result[FAULTS[fault].form]) for result in found)


@pytest.mark.parametrize(
    ("check", "ranks"),
    [
        pytest.param(n, ranks, id=n, marks=[*MARKS[ranks], *[pytest.mark.thorough] * (n in LONG)])
        for n, (ranks, _) in CHECKS.items()
    ],
)
def test_check(results: Run, check: str, ranks: int) -> None:
    found = results(ranks).get(f"check.{check}", [])
    assert len(found) == ranks, "not every rank finished"
    assert [result.get("error") for result in found] == [None] * ranks


LOST = """\
import os, sys
from pathlib import Path
import torch, torch.distributed as dist
from forked import record, run_ranks

folder = Path(sys.argv[1])

def crash():
    if dist.get_rank() == 0:
        os._exit(1)
    dist.all_reduce(torch.ones(1))

def run(rank):
    record(folder, "before", lambda: {})
    record(folder, "crash", crash)
    record(folder, "after", lambda: {})

run_ranks(2, folder, run)
"""


@pytest.mark.ranks
@pytest.mark.thorough
def test_nothing_follows_a_lost_rank(tmp_path: Path) -> None:
    assert not launch(tmp_path, "-c", LOST, str(tmp_path))
    found = results_in(tmp_path)
    assert {name: len(results) for name, results in found.items()} == {"before": 2, "crash": 1}
    assert "error" in found["crash"][0]


def test_the_page_is_current() -> None:
    """Written by ``python -m behaviour.page``, in ``tests/``."""
    assert PAGE.read_text() == render()


def test_every_behaviour_is_a_sentence() -> None:
    for behaviour in EVERY:
        assert behaviour.sentence[-1] == "."
