"""Starts what runs several ranks, in a process of its own, and reads what they wrote."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# Not the root of the repository: there ./fsdp_migrate would hide the installed package.
TESTS = Path(__file__).parent
Results = dict[str, list[dict[str, Any]]]


def launch(folder: Path, *arguments: str) -> str:
    """Runs Python in ``tests/``; why that failed and what it printed, or nothing."""
    log = folder / "log"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # FSDP2 would take a GPU that it sees
    command = [sys.executable, "-W", "ignore", *arguments]
    with log.open("wb") as stream:
        try:
            subprocess.run(
                command,
                cwd=TESTS,
                env=environment,
                stdout=stream,
                stderr=stream,
                timeout=900,  # three minutes of work, on a machine that has other work
                check=True,
            )
        except subprocess.SubprocessError as error:
            return f"{error}\n{log.read_text(errors='replace')[-4000:]}"
    if not any(folder.glob("*.json")):
        return f"nothing was written:\n{log.read_text(errors='replace')[-4000:]}"
    return ""


def results_in(folder: Path) -> Results:
    """By name, in the order of ranks."""
    found: Results = {}
    for path in sorted(folder.glob("*.json")):
        name, _, _ = path.stem.rpartition(".")
        found.setdefault(name, []).append(json.loads(path.read_text()))
    return found
