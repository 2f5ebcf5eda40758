from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .programs import migrate

# Not the root of the repository: there ./fsdp_migrate would hide the installed package.
TESTS = Path(__file__).parents[1]
Results = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs as the codemod leaves them."""
    folder = tmp_path_factory.mktemp("migrated")
    for name, source in migrate(tmp_path_factory.mktemp("programs")).items():
        (folder / f"{name}.py").write_text(source)
    return folder


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Callable[[int], Results]:
    """Runs everything under a number of ranks, once, and gives the results by name and rank."""
    done: dict[int, Results | str] = {}

    def run(ranks: int) -> Results:
        if ranks not in done:
            done[ranks] = _run(ranks, tmp_path_factory.mktemp(f"ranks-{ranks}"), migrated)
        found = done[ranks]
        if isinstance(found, str):  # once is enough: the other tests need not wait for it again
            pytest.fail(f"{ranks} ranks did not come to their end:\n{found}")
        return found

    return run


def _run(ranks: int, folder: Path, migrated: Path) -> Results | str:
    """The results, or what the ranks printed before they failed."""
    log = folder / "log"
    command = [sys.executable, "-W", "ignore", "-m", "equivalence.ranks", str(ranks)]
    command += [str(folder), str(migrated)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # FSDP2 would take a GPU that it sees
    with log.open("wb") as stream:
        try:
            subprocess.run(
                command,
                cwd=TESTS,
                env=environment,
                stdout=stream,
                stderr=stream,
                timeout=300,
                check=True,
            )
        except subprocess.SubprocessError as error:
            return f"{error}\n{log.read_text(errors='replace')[-4000:]}"
    found: Results = {}
    for path in sorted(folder.glob("*.json")):
        name, _, _ = path.stem.rpartition(".")
        found.setdefault(name, []).append(json.loads(path.read_text()))
    return found or log.read_text(errors="replace")
