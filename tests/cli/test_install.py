"""The tool as others install it, without extras: by pip, and by the real pre-commit."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate import git

ROOT = Path(__file__).parents[2]
PRE_COMMIT = Path(sys.executable).with_name("pre-commit")
FSDP1 = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
    "def wrap(model):\n    return FSDP(model)\n"
)
FSDP2 = (
    "from torch.distributed.fsdp import fully_shard\n\n\ndef f(model):\n    fully_shard(model)\n"
)


def commit_all(folder: Path) -> None:
    person = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for command in (
        ("init", "-q", "-b", "main"),
        ("add", "-A"),
        (*person, "commit", "-q", "-m", "all"),
    ):
        subprocess.run(["git", "-C", str(folder), *command], check=True, capture_output=True)


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This working tree as a repository with one commit."""
    copy = tmp_path_factory.mktemp("tool")
    listed = git.listed_files(ROOT)
    assert listed is not None, "the tests run from a git checkout"
    for name in listed:
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    commit_all(copy)
    return copy


def configuration(tool: Path) -> str:
    """What docs/project.md gives to copy, with the address of the tool."""
    page = (ROOT / "docs" / "project.md").read_text("utf-8")
    found = re.search(r"^repos:\n.*?(?=^```)", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    assert "https://github.com/OWNER/fsdp-migrate" in found[0]
    return found[0].replace("https://github.com/OWNER/fsdp-migrate", str(tool))


@pytest.mark.slow
def test_the_hooks_flag_fsdp1_move_it_and_pass_fsdp2(tool: Path, tmp_path: Path) -> None:
    user = tmp_path / "a user"
    user.mkdir()
    (user / "old.py").write_text(FSDP1)
    (user / "new.py").write_text(FSDP2)
    (user / "__init__.py").touch()
    (user / "empty.py").touch()
    (user / "old.ipynb").write_text(json.dumps({"cells": [{"cell_type": "code", "source": FSDP1}]}))
    (user / ".pre-commit-config.yaml").write_text(configuration(tool))
    commit_all(user)
    environment = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "cache")}

    def hooks(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(PRE_COMMIT), "run", *arguments],
            cwd=user,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    flagged = hooks("fsdp1-usage", "--verbose", "--files", "old.py", "new.py", "old.ipynb")
    assert flagged.returncode == 1, flagged.stdout + flagged.stderr
    assert "old.py:5:12 FSDP" in flagged.stdout
    assert "old.ipynb:1:" in flagged.stdout
    assert "new.py:" not in flagged.stdout
    python = next((tmp_path / "cache").glob("repo*/py_env*/bin/python"))
    assert subprocess.run([python, "-c", "import torch"], capture_output=True).returncode

    begun = os.times().children_user
    passed = hooks("fsdp1-usage", "--files", "new.py", "__init__.py", "empty.py")
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert os.times().children_user - begun < 3, "pre-commit itself and one start of the tool"

    moved = hooks("fsdp1-migrate", "--all-files")
    assert moved.returncode == 1, "the hook changed files"
    assert "files were modified by this hook" in moved.stdout
    assert "from fsdp_migrate.runtime" in (user / "old.py").read_text()
    assert (user / "new.py").read_text() == FSDP2
    commit_all(user)
    both = hooks("--all-files")
    assert both.returncode == 0, both.stdout + both.stderr
    assert both.stdout.count("Passed") == 2
