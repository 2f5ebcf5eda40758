"""Checkpoints that FSDP1 and FSDP2 wrote on two ranks, and the command line in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.cli import exit_code

from ..launch import launch, results_in


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
    failed = launch(folder, "-m", "checkpoint_tool.ranks", str(folder))
    results = results_in(folder).get("results", [])
    if failed or len(results) != 2:
        pytest.fail(f"the ranks did not come to their end:\n{failed}")
    return Written(folder, results)
