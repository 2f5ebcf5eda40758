"""The tool as others install it, without extras: by pip, and by the real pre-commit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
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
    "from torch.distributed.fsdp import fully_shard\n\n\ndef wrap(model):\n    fully_shard(model)\n"
)


def commit_all(folder: Path) -> None:
    person = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for command in (("init", "-q"), ("add", "-A"), (*person, "commit", "-q", "-m", "all")):
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


@pytest.mark.slow
def test_the_hook_flags_fsdp1_and_passes_fsdp2(tool: Path, tmp_path: Path) -> None:
    user = tmp_path / "user"
    user.mkdir()
    (user / "old.py").write_text(FSDP1)
    (user / "new.py").write_text(FSDP2)
    (user / "__init__.py").touch()
    commit_all(user)
    environment = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "cache")}

    def hook(*files: str) -> subprocess.CompletedProcess[str]:
        command = [str(PRE_COMMIT), "try-repo", str(tool), "fsdp1-usage", "--verbose", "--files"]
        return subprocess.run(
            [*command, *files],
            cwd=user,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    flagged = hook("old.py", "new.py")
    assert flagged.returncode == 1, flagged.stdout + flagged.stderr
    assert "old.py:5:12 FSDP" in flagged.stdout
    assert "new.py:" not in flagged.stdout

    passed = hook("new.py", "__init__.py")
    assert passed.returncode == 0, passed.stdout + passed.stderr


@pytest.mark.slow
def test_works_without_torch(tool: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    installed = run(python, "-m", "pip", "install", "--quiet", tool)
    assert installed.returncode == 0, installed.stderr
    assert run(python, "-c", "import torch").returncode == 1

    (tmp_path / "old.py").write_text(FSDP1)
    tool_command = python.with_name("fsdp-migrate")
    assert "old.py:5:12 FSDP" in run(tool_command, "check", "old.py").stdout
    diff = run(tool_command, "old.py", "--diff")
    assert diff.returncode == 0, diff.stderr
    assert "+from " in diff.stdout
    assert run(tool_command, "rules").returncode == 0
    assert run(tool_command, "--help").returncode == 0
    verify = run(tool_command, "verify", "old.py")
    assert verify.returncode == 2
    assert "torch" in verify.stderr
    assert "Traceback" not in verify.stderr
