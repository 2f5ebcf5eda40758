"""A model whose constructor is silenced keeps its bridge: each use does the same there in either form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate import migrate_source

from ..launch import TESTS, Results, launch, results_in
from .programs import FORMS, USES

START = """\
import sys
from pathlib import Path
tests = Path(sys.argv[1])
sys.path += [str(tests), str(tests.parent)]
from tests.uses.ranks import main
main(Path(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Runs everything once, and gives the results by name and rank."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    failed = launch(folder, "-P", "-c", START, str(TESTS), str(folder))
    assert not failed, failed
    return results_in(folder)


def _same(found: Any, expected: Any, tolerance: float) -> bool:
    """Whether two results are equal; the norm that gradients are clipped by is rounded otherwise."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            _same(found[key], expected[key], tolerance) for key in expected
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(
            _same(a, b, tolerance) for a, b in zip(found, expected, strict=True)
        )
    if isinstance(expected, float):
        return bool(found == pytest.approx(expected, rel=tolerance, abs=tolerance))
    return bool(found == expected)


@pytest.mark.ranks
@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("use", USES)
def test_trains_and_saves_the_same(use: str, form: str, results: Results) -> None:
    expected, found = results[f"{use} original"], results[f"{use} {form}"]
    assert [each.get("error") for each in (*expected, *found)] == [None] * 4
    assert all(each["bridge"] for each in found)
    assert not any(each["bridge"] for each in expected)
    for each, original in zip(found, expected, strict=True):
        for what in ("seen", "states", "saved"):
            assert _same(each[what], original[what], 1e-5 if use == "clip" else 0), what


@pytest.mark.parametrize("use", USES)
def test_a_use_is_made_plain_by_itself(use: str) -> None:
    after, _ = migrate_source(USES[use].source)
    assert "model = FSDP(model, " in after
    assert (USES[use].plain[0].splitlines()[0] not in after) == USES[use].rewritten
