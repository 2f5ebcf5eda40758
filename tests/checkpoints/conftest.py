from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .programs import migrate

TESTS = Path(__file__).parents[1]
Results = dict[str, list[dict[str, Any]]]
# Runs in the folder of the tests. The root of the repository comes last: ./fsdp_migrate would hide the installed package.
START = """\
import sys
from pathlib import Path
sys.path.append(str(Path.cwd().parent))
from tests.checkpoints.ranks import main
main(*map(Path, sys.argv[1:]))
"""


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs as the codemod leaves them."""
    folder = tmp_path_factory.mktemp("migrated")
    for name, source in migrate(tmp_path_factory.mktemp("programs")).items():
        (folder / f"{name}.py").write_text(source)
    return folder


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Results:
    """Runs everything once, and gives the results by name and rank."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-W", "ignore", "-c", START]
    command += [str(folder), str(migrated)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # FSDP2 would take a GPU that it sees
    log = folder / "log"
    with log.open("wb") as stream:
        ended = subprocess.run(
            command, cwd=TESTS, env=environment, stdout=stream, stderr=stream, timeout=300
        )
    found: Results = {}
    for path in sorted(folder.glob("*.json")):
        name, _, _ = path.stem.rpartition(".")
        found.setdefault(name, []).append(json.loads(path.read_text()))
    if ended.returncode or not found:
        pytest.fail(
            f"the ranks did not come to their end:\n{log.read_text(errors='replace')[-4000:]}"
        )
    return found
