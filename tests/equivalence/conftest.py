from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
Results = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Results]:
    """Runs everything under a number of ranks, once, and gives the results by name and rank."""

    @cache
    def run(ranks: int) -> Results:
        folder = tmp_path_factory.mktemp(f"ranks-{ranks}")
        module = f"{__package__ or 'tests.equivalence'}.ranks"
        log = folder / "log"
        with log.open("wb") as stream:
            command = [sys.executable, "-W", "ignore", "-m", module, str(ranks), str(folder)]
            subprocess.run(command, cwd=ROOT, stdout=stream, stderr=stream, timeout=300, check=True)
        found: Results = {}
        for path in sorted(folder.glob("*.json")):
            name, _, _ = path.stem.rpartition(".")
            found.setdefault(name, []).append(json.loads(path.read_text()))
        if not found:
            raise RuntimeError(log.read_text())
        return found

    return run
