"""The GitHub action: its shell steps, run here as a runner would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TRAPS = Path(__file__).parent / "programs" / "traps"
ACTION: Any = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
# The runner's step "Install" puts the command on the path.
TOOL = Path(sys.executable).parent
STEPS: dict[str, Any] = {step["name"]: step for step in ACTION["runs"]["steps"] if "run" in step}


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=e@x")
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


def step(name: str, temp: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run one step; an input that is not given has its default."""
    known = {key: str(it.get("default", "")) for key, it in ACTION["inputs"].items()} | inputs
    values = {f"inputs.{key}": value for key, value in known.items()}
    values |= {"runner.temp": str(temp), "github.action_path": str(ROOT)}
    environment = {
        key: re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda found: values[found[1]], text)
        for key, text in STEPS[name]["env"].items()
    }
    environment["GITHUB_STEP_SUMMARY"] = str(temp / "summary.md")
    environment["PATH"] = os.pathsep.join([str(TOOL), os.environ["PATH"]])
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[name]["run"]]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A training repository below another folder, with its last commit that has FSDP1."""
    folder = tmp_path / "work" / "training"
    folder.mkdir(parents=True)
    for name, source in (("train.py", "full.py"), ("parts.py", "parts.py")):
        (folder / name).write_text((TRAPS / source).read_text())
    git(folder.parent, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "with FSDP1")
    git(folder, "tag", "v1")
    return folder


@pytest.mark.thorough
def test_a_migrated_repository_passes_and_a_fault_in_it_does_not(
    repository: Path, tmp_path: Path
) -> None:
    inputs = {"path": str(repository), "entry": "train.py", "device": "cpu", "before": "v1"}
    inputs |= {"arguments": "--steps '2'", "options": "--launcher python --no-plain"}
    before = step("Check", tmp_path, path=str(repository), entry="train.py")
    assert before.returncode == 0, before.stderr  # findings, and nothing to be wrong about yet
    assert step("Check", tmp_path, **inputs).returncode == 1  # FSDP1 came back
    subprocess.run([TOOL / "fsdp-migrate", "migrate", repository], check=True, capture_output=True)
    assert step("Check", tmp_path, **inputs).returncode == 0

    done = step("Verify", tmp_path, **inputs)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same: 2 losses on 2 ranks" in done.stdout
    assert "### ✅ fsdp-migrate verify: `train.py`" in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "fsdp-migrate" / "verdict.json").exists()

    script = repository / "train.py"
    script.write_text(script.read_text().replace("        sync_module_states=True,\n", ""))
    git(repository, "worktree", "remove", "--force", str(tmp_path / "fsdp-migrate" / "before"))
    done = step("Verify", tmp_path, **inputs)
    assert done.returncode == 1, done.stdout + done.stderr
    summary = (tmp_path / "summary.md").read_text()
    assert "**Likeliest cause:** the programs begin with different weights." in summary
    page = (tmp_path / "fsdp-migrate" / "report.html").read_text()
    assert "-        sync_module_states=True," in page


def test_the_artifact_is_what_the_steps_write() -> None:
    upload = next(s for s in ACTION["runs"]["steps"] if "upload-artifact" in s.get("uses", ""))
    written = "".join(STEPS["Check"]["run"] + STEPS["Verify"]["run"])
    for line in upload["with"]["path"].split("\n"):
        assert line.rpartition("/")[2] in written
    assert upload["if"] == "always()"
