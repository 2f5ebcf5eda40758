"""The bundled programs: what the tool makes of them is what is beside them, to the byte."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from fsdp_migrate.codemods.edit.text import comments
from fsdp_migrate.engine import analyse
from fsdp_migrate.report import Report
from fsdp_migrate.settings import Options

from .bundled import CASES, FIXTURES

FSDP_MIGRATE = Path(sys.executable).parent / "fsdp-migrate"


def python_files(folder: Path) -> dict[str, Path]:
    return {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*.py"))}


@cache
def run(folder: Path, form: str = "auto") -> tuple[Report, dict[str, bytes]]:
    """What the tool makes of the files of a folder."""
    files = python_files(folder)
    report = analyse(list(files.values()), Options(form))
    assert not report.errors
    after = {change.path: change.after for change in report.changes}
    return report, {name: after.get(path, path.read_bytes()) for name, path in files.items()}


def test_there_are_cases() -> None:
    assert {"mnist", "transformer", "meta_init", "finetune", "hybrid"} <= set(CASES)
    assert {"policies", "strategies", "groups", "precision", "rank0_loading"} <= set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_migrating_the_original_gives_the_migrated_program(case: str) -> None:
    """If this fails, and the new program is better: `make fixtures`."""
    _, result = run(FIXTURES / case / "original")
    migrated = python_files(FIXTURES / case / "migrated")
    assert result == {name: path.read_bytes() for name, path in migrated.items()}


@pytest.mark.parametrize("case", CASES)
def test_the_diff_applies_with_git(case: str, tmp_path: Path) -> None:
    original, migrated = FIXTURES / case / "original", FIXTURES / case / "migrated"
    program = tmp_path / "program"  # not at the top of the project: its modules sort as others do
    for name, path in python_files(original).items():
        target = program / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    # The line length of the project goes along: it decides how inserted statements are broken.
    (tmp_path / "pyproject.toml").write_bytes((FIXTURES.parent / "pyproject.toml").read_bytes())
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    diff = subprocess.run(
        [FSDP_MIGRATE, "program", "--diff"],
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
        assert (program / name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("case", CASES)
def test_a_second_run_changes_nothing(case: str) -> None:
    report, _ = run(FIXTURES / case / "migrated")
    assert report.changes == []
    assert report.is_done, "FSDP1 of torch is used nowhere, and nothing is left for a person"


@pytest.mark.parametrize("form", ["auto", "bridge"])
@pytest.mark.parametrize("case", CASES)
def test_no_comment_is_lost(case: str, form: str) -> None:
    _, result = run(FIXTURES / case / "original", form)
    for name, path in python_files(FIXTURES / case / "original").items():
        before, after = comments(path.read_text("utf-8")), comments(result[name].decode())
        assert not Counter(before) - Counter(after)


@pytest.mark.parametrize("case", CASES)
def test_bridge_changes_nothing_but_the_paths_and_places_of_imports(case: str) -> None:
    _, result = run(FIXTURES / case / "original", "bridge")
    for name, path in python_files(FIXTURES / case / "original").items():
        before = path.read_text("utf-8")
        swapped = before.replace("torch.distributed.fsdp", "fsdp_migrate.runtime")
        assert sorted(result[name].decode().splitlines()) == sorted(swapped.splitlines())
