"""`--stage checkpoint` on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from ..bundled import FIXTURES


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return Path(copytree(FIXTURES / "resume" / "original", tmp_path / "program"))


def test_the_models_stay_as_they_are(program: Path, real_cli: Callable[..., Any]) -> None:
    before = (program / "train.py").read_bytes()
    result = real_cli(str(program), "--stage", "checkpoint")
    assert result.code == 0, result.err
    assert (program / "train.py").read_bytes() == before
    after = (program / "checkpoint.py").read_text()
    assert "get_model_state_dict(" in after
    assert "FullyShardedDataParallel" not in after
    assert result.text.splitlines()[-1].endswith("4 other constructs for --stage full.")


def test_a_second_run_has_nothing_to_do(program: Path, real_cli: Callable[..., Any]) -> None:
    real_cli(str(program), "--stage", "checkpoint")
    result = real_cli(str(program), "--stage", "checkpoint", "--diff", "--allow-dirty")
    assert result.text == ""
    assert "No checkpoint of an FSDP1 model in 3 files." in result.err
