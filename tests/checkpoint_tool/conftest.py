"""Checkpoints that FSDP1 and FSDP2 wrote on two ranks, and the command line in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.cli import exit_code

# Not the root of the repository: there ./fsdp_migrate would hide the installed package.
TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def run(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Runs `checkpoint ...` in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def do(*arguments: object) -> Result:
        capsysbinary.readouterr()
        code = exit_code(["checkpoint", *map(str, arguments)])
        captured = capsysbinary.readouterr()
        return Result(code, captured.out.decode(), captured.err.decode())

    return do


@dataclass(frozen=True)
class Written:
    """What the two ranks wrote, and what each found when it loaded the conversions."""

    folder: Path
    results: list[dict[str, Any]]


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("checkpoints")
    log = folder / "log"
    command = [sys.executable, "-W", "ignore", "-m", "checkpoint_tool.ranks", str(folder)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # FSDP2 would take a GPU that it sees
    with log.open("wb") as stream:
        subprocess.run(
            command,
            cwd=TESTS,
            env=environment,
            stdout=stream,
            stderr=stream,
            timeout=300,
            check=False,
        )
    files = sorted(folder.glob("results.*.json"))
    if len(files) != 2:
        pytest.fail(log.read_text(errors="replace")[-4000:])
    return Written(folder, [json.loads(file.read_text()) for file in files])
