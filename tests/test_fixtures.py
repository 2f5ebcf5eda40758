"""The bundled programs: what the tool makes of them is what docs/gallery shows, to the byte."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fsdp_migrate.codemods.edit.text import comments
from fsdp_migrate.engine import analyse

from .bundled import CASES, FIXTURES, python_files
from .gallery import GALLERY, migrated, pages, write_migrated

FSDP_MIGRATE = Path(sys.executable).parent / "fsdp-migrate"


@pytest.mark.parametrize("name", pages())
def test_the_gallery_shows_what_the_tool_makes(name: str) -> None:
    """If this fails, and the new program is better: `make fixtures`."""
    assert (GALLERY / name).read_text("utf-8") == pages()[name]


@pytest.mark.parametrize("case", CASES)
def test_the_diff_applies_with_git(case: str, tmp_path: Path) -> None:
    original = FIXTURES / case / "original"
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
    for name, content in migrated(case)[1].items():
        assert (program / name).read_bytes() == content


@pytest.mark.parametrize("case", CASES)
def test_a_second_run_changes_nothing(case: str, tmp_path: Path) -> None:
    report = analyse([*python_files(write_migrated(case, tmp_path)).values()])
    assert report.changes == []
    assert report.is_done, "FSDP1 of torch is used nowhere, and nothing is left for a person"


@pytest.mark.parametrize("form", ["auto", "bridge"])
@pytest.mark.parametrize("case", CASES)
def test_no_comment_is_lost(case: str, form: str) -> None:
    _, result = migrated(case, form)
    for name, path in python_files(FIXTURES / case / "original").items():
        before, after = comments(path.read_text("utf-8")), comments(result[name].decode())
        assert not Counter(before) - Counter(after)


@pytest.mark.parametrize("case", CASES)
def test_bridge_changes_nothing_but_the_paths_and_places_of_imports(case: str) -> None:
    _, result = migrated(case, "bridge")
    for name, path in python_files(FIXTURES / case / "original").items():
        before = path.read_text("utf-8")
        swapped = before.replace("torch.distributed.fsdp", "fsdp_migrate.runtime")
        assert sorted(result[name].decode().splitlines()) == sorted(swapped.splitlines())
