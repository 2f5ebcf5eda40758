"""FSDP1 beside the bridge and beside models that are sharded in place, and FSDP1 programs beside their plain form.

They have the same losses, parameters, buffers, norms and number of collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..launch import launch, results_in
from .cases import COMPARISONS, FAULTS
from .checks import CHECKS
from .plain import FAULTS as PLAIN_FAULTS
from .plain import PLAIN, Program
from .train import Case, differences

pytestmark = pytest.mark.ranks

Results = Callable[..., dict[str, list[dict[str, Any]]]]


def at_ranks(value: Any, name: str, ranks: tuple[int, ...]) -> list[Any]:
    """A test for each number of ranks: parameters, the number, and whether it shows again what the first has shown."""
    first, *others = ranks
    again = [
        pytest.param(value, n, True, id=f"{name}-{n}", marks=pytest.mark.thorough) for n in others
    ]
    return [pytest.param(value, first, False, id=f"{name}-{first}"), *again]


@pytest.mark.parametrize(
    ("case", "ranks", "again"), [p for c in COMPARISONS for p in at_ranks(c, c.name, c.ranks)]
)
def test_trains_like_fsdp1(results: Results, case: Case, ranks: int, again: bool) -> None:
    found = results(ranks, again).get(case.name, [])
    assert len(found) == ranks, "not every rank finished"
    bitwise = ranks == 2 and case.bitwise
    for result in found:
        assert differences(case, result, bitwise) == []
        for form in ("in place", "torch"):
            if form in result:
                assert differences(case, result[form], bitwise) == [], form


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found(results: Results, fault: str) -> None:
    case, _, expected = FAULTS[fault]
    found = results(2)[f"fault-{fault}"]
    assert len(found) == 2
    for result in found:
        assert "error" not in result, result["error"]
        different = [line.split(":")[0] for line in differences(case, result, bitwise=False)]
        assert expected in different


@pytest.mark.parametrize(
    ("program", "ranks", "again"), [p for c in PLAIN for p in at_ranks(c, c.name, c.case.ranks)]
)
def test_plain_program_trains_like_the_original(
    results: Results, program: Program, ranks: int, again: bool
) -> None:
    found = results(ranks, again).get(program.name, [])
    assert len(found) == ranks, "not every rank finished"
    for result in found:
        assert differences(program.case, result, ranks == 2) == []


@pytest.mark.parametrize("fault", PLAIN_FAULTS)
def test_fault_in_a_plain_form_is_found(results: Results, fault: str) -> None:
    name, _, _, expected = PLAIN_FAULTS[fault]
    case = next(each.case for each in PLAIN if each.name == name)
    found = results(2)[f"fault-{fault}"]
    assert len(found) == 2
    for result in found:
        assert "error" not in result, result["error"]
        different = [line.split(":")[0] for line in differences(case, result, bitwise=False)]
        assert expected in different


@pytest.mark.parametrize(
    ("check", "ranks", "again"),
    [p for name, (at, _) in CHECKS.items() for p in at_ranks(name, name, at)],
)
def test_check(results: Results, check: str, ranks: int, again: bool) -> None:
    found = results(ranks, again).get(check, [])
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


def test_nothing_follows_a_lost_rank(tmp_path: Path) -> None:
    assert not launch(tmp_path, "-c", LOST, str(tmp_path))
    found = results_in(tmp_path)
    assert {name: len(results) for name, results in found.items()} == {"before": 2, "crash": 1}
    assert "error" in found["crash"][0]


def test_names_are_unique() -> None:
    names = [case.name for case in COMPARISONS] + list(CHECKS)
    names += [program.name for program in PLAIN]
    assert len(names) == len(set(names))
