"""FSDP1 beside the bridge and beside models that are sharded in place, and FSDP1 programs with their imports swapped.

They have the same losses, parameters, buffers, norms and number of collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.engine import analyse_source
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

from ..launch import launch, results_in
from . import faults, in_place, loop, silent, summon, surroundings  # noqa: F401  (they register their checks)
from .cases import COMPARISONS, FAULTS
from .checks import CHECKS
from .plain import FAULTS as PLAIN_FAULTS
from .plain import PLAIN
from .programs import PROGRAMS, Program
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
    ("program", "ranks", "again"), [p for c in PROGRAMS for p in at_ranks(c, c.name, c.case.ranks)]
)
def test_swapped_program_trains_like_the_original(
    results: Results, program: Program, ranks: int, again: bool
) -> None:
    found = results(ranks, again).get(program.name, [])
    assert len(found) == ranks, "not every rank finished"
    bitwise = ranks == 2 and program.case.bitwise
    for result in found:
        assert differences(program.case, result, bitwise) == []
        assert differences(program.case, result["in place"], bitwise) == []


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
    names += [program.name for program in (*PROGRAMS, *PLAIN)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("row", silent.ROWS, ids=lambda row: row.name)
def test_what_looks_at_parameters_as_tensors_is_reported(row: silent.Row) -> None:
    """The rows that give another result on the bridge have a finding with their rule; no other row has one of these.

    A program may run with another torch than the one here, so that one row has a finding although it is the same with 2.8.
    """
    file = Source(Path("program.py"), "program.py", row.source.encode())
    codes = {finding.code for finding in analyse_source(file, Options(form="bridge")).findings}
    assert codes & {"FSDP302", "FSDP506", "FSDP507"} >= {row.rule} - {""}
    if not row.rule and row.name != "norm-by-hand":
        assert not codes & {"FSDP506", "FSDP507"}
