"""The bundled programs: what the tool makes of them is what lies beside them, to the byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.codemods.apply import comments
from fsdp_migrate.engine import analyse

from .bundled import CASES, FIXTURES

FSDP_MIGRATE = Path(sys.executable).parent / "fsdp-migrate"


def python_files(folder: Path) -> dict[str, Path]:
    return {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*.py"))}


def test_there_are_cases() -> None:
    assert {"mnist", "transformer", "meta_init", "finetune", "hybrid"} <= set(CASES)
    assert {"policies", "strategies", "groups", "precision", "rank0_loading"} <= set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_migrating_the_original_gives_the_migrated_program(case: str) -> None:
    original, migrated = FIXTURES / case / "original", FIXTURES / case / "migrated"
    report = analyse(list(python_files(original).values()))
    assert not report.errors
    after = {change.path: change.after for change in report.changes}
    result = {
        name: after.get(path, path.read_bytes()) for name, path in python_files(original).items()
    }
    assert result == {name: path.read_bytes() for name, path in python_files(migrated).items()}


@pytest.mark.parametrize("case", CASES)
def test_the_diff_applies_with_git(case: str, tmp_path: Path) -> None:
    original, migrated = FIXTURES / case / "original", FIXTURES / case / "migrated"
    for name, path in python_files(original).items():
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    # The line length of the project goes along: it decides how inserted statements are broken.
    (tmp_path / "pyproject.toml").write_bytes((FIXTURES.parent / "pyproject.toml").read_bytes())
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    diff = subprocess.run(
        [FSDP_MIGRATE, ".", "--diff"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        env=environment,
    )
    assert diff.returncode == 0, diff.stderr.decode()
    subprocess.run(
        ["git", "apply", "-"], cwd=tmp_path, input=diff.stdout, check=True, env=environment
    )
    for name, path in python_files(migrated).items():
        assert (tmp_path / name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("case", CASES)
def test_a_second_run_changes_nothing(case: str) -> None:
    report = analyse(list(python_files(FIXTURES / case / "migrated").values()))
    assert not report.errors
    assert report.changes == []


@pytest.mark.parametrize("case", CASES)
def test_no_comment_is_lost(case: str) -> None:
    before = [
        c
        for p in python_files(FIXTURES / case / "original").values()
        for c in comments(p.read_text())
    ]
    after = [
        c
        for p in python_files(FIXTURES / case / "migrated").values()
        for c in comments(p.read_text())
    ]
    assert sorted(before) == sorted(c for c in after if not c.startswith("# fsdp-migrate:"))
