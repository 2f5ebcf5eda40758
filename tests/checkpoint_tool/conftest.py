"""Checkpoints that FSDP1 and FSDP2 wrote on two ranks, and the command line in this process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Result
from ..launch import launch, results_in

Run = Callable[..., Result]


@pytest.fixture
def run(real_cli: Run) -> Run:
    """Runs `checkpoint ...` in `tmp_path`."""
    return lambda *arguments: real_cli("checkpoint", *map(str, arguments))


@dataclass(frozen=True)
class Written:
    """What the two ranks wrote, and what each found when it loaded the conversions."""

    folder: Path
    results: list[dict[str, Any]]


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("checkpoints")
    failed = launch(folder, "-m", "checkpoint_tool.ranks", str(folder))
    results = results_in(folder).get("results", [])
    if failed or len(results) != 2:
        pytest.fail(f"the ranks did not come to their end:\n{failed}")
    return Written(folder, results)
