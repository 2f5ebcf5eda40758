"""A repository that pip has installed editable: the migrated copy runs, and not what is installed."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import pytest

from .test_evidence import SHARD, program

TRAIN = program("engine.shard", "nn.Linear(3, 1)", "engine.shard.__file__")
PROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "engine"
version = "1"
[tool.setuptools]
packages = ["engine"]
package-dir = {{"engine" = "{folder}"}}
"""
VERIFY = """\
import json, sys
from pathlib import Path
from fsdp_migrate.verify.launch import Launcher
from fsdp_migrate.verify.main import verify

verdict = verify(Path(sys.argv[1]), entry=Path("train.py"), launcher=Launcher.TORCHRUN, device="cpu")
ranks = verdict.migrated.ranks
print(json.dumps([verdict.equal, ranks[0].output.split(), [*ranks[0].files]]))
"""


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)],
        env={**os.environ, **environment},
        cwd=tempfile.gettempdir(),  # not where ./fsdp_migrate would hide the installed package
        capture_output=True,
        text=True,
        check=False,
    )


# A folder that setuptools puts on the path, and one for which it installs a finder.
@pytest.mark.slow
@pytest.mark.parametrize(("folder", "hook"), [("src/engine", ".pth"), ("code", "finder.py")])
def test_what_pip_installed_editable_does_not_run_instead_of_its_copy(
    tmp_path: Path, folder: str, hook: str
) -> None:
    repo, python = tmp_path / "repo", tmp_path / "venv" / "bin" / "python"
    for name, text in {
        "train.py": TRAIN,
        "pyproject.toml": PROJECT.format(folder=folder),
        f"{folder}/__init__.py": "",
        f"{folder}/shard.py": SHARD,
    }.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(text)
    for git in (["init", "-q", repo], ["-C", repo, "add", "-A"]):
        assert run("git", *git).returncode == 0
    venv.create(tmp_path / "venv")
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # With what the tests run with, wherever that is installed.
    (packages / "here.pth").write_text(
        "".join(f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages())
    )
    pip = [sys.executable, "-m", "pip", "--python", python]
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "-e", repo]
    installed = run(*pip, *install)
    assert installed.returncode == 0, installed.stderr
    assert [path for path in packages.glob("__editable__*") if path.name.endswith(hook)]
    where = run(python, "-c", "import engine.shard; print(engine.shard.__file__)")
    assert where.stdout.strip() == str(repo / folder / "shard.py"), where.stderr

    ended = run(python, "-c", VERIFY, repo)
    assert ended.returncode == 0, ended.stderr
    equal, printed, files = json.loads(ended.stdout.splitlines()[-1])
    assert equal
    assert all("/migrated/copy/repo/" in path for path in printed), printed
    assert f"{folder}/shard.py" in files
    refused = run(python, "-c", VERIFY, repo, FORGETS="1")
    assert f"torch's FSDP1 at {repo / folder / 'shard.py'}:5" in refused.stderr, refused.stderr
