"""The GitHub action: its shell steps, run here as a runner would."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
ACTION: Any = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
# The runner's step "Install" puts the command on the path.
TOOL = Path(sys.executable).parent
STEPS: dict[str, Any] = {step["name"]: step for step in ACTION["runs"]["steps"] if "run" in step}


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=e@x")
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


class Job:
    """A job of a runner: its folder for temporary files, and what steps hand to later ones."""

    def __init__(self, temp: Path) -> None:
        self.temp = self.workspace = temp
        self.outputs: dict[str, str] = {}

    def step(self, name: str, **inputs: str) -> subprocess.CompletedProcess[str]:
        """Run one step; an input that is not given has its default."""
        known = {key: str(it.get("default", "")) for key, it in ACTION["inputs"].items()} | inputs
        values = {f"inputs.{key}": value for key, value in known.items()} | self.outputs
        values |= {"runner.temp": str(self.temp), "github.action_path": str(ROOT)}
        environment = {
            key: re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda found: values[found[1]], text)
            for key, text in STEPS[name]["env"].items()
        }
        handed = self.temp / "output"
        handed.write_text("")
        environment["GITHUB_OUTPUT"] = str(handed)
        environment["GITHUB_STEP_SUMMARY"] = str(self.temp / "summary.md")
        environment["PATH"] = os.pathsep.join([str(TOOL), os.environ["PATH"]])
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[name]["run"]]
        done = subprocess.run(
            command,
            cwd=self.workspace,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        pairs = (line.partition("=") for line in handed.read_text().splitlines())
        self.outputs |= {f"steps.start.outputs.{key}": value for key, _, value in pairs}
        return done

    @property
    def folder(self) -> Path:
        return Path(self.outputs["steps.start.outputs.folder"])


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job that has begun to use the action."""
    made = Job(tmp_path)
    started = made.step("Start")
    assert started.returncode == 0, started.stderr
    return made


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A training repository below another folder, with its last commit that has FSDP1."""
    folder = tmp_path / "work" / "training"
    folder.mkdir(parents=True)
    for name, source in (("train.py", "trap.py"), ("task.py", "task.py")):
        (folder / name).write_text((PROGRAMS / source).read_text())
    git(folder.parent, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "with FSDP1")
    git(folder, "tag", "v1")
    return folder


def test_each_use_in_a_job_has_a_folder_and_an_artifact_of_its_own(job: Job) -> None:
    first = dict(job.outputs)
    assert job.step("Start", artifact="mine").returncode == 0
    assert first["steps.start.outputs.artifact"] == "fsdp-migrate"
    assert job.outputs["steps.start.outputs.artifact"] == "mine-2"
    assert first["steps.start.outputs.folder"] != str(job.folder)
    assert Path(job.outputs["steps.start.outputs.cache"]).is_absolute()


def test_before_a_migration_the_changes_are_written(job: Job, repository: Path) -> None:
    done = job.step("Check", path=str(repository))
    assert done.returncode == 0, done.stderr  # findings, and nothing to be wrong about yet
    written = sorted(file.name for file in job.folder.iterdir())
    assert written == ["changes.diff", "changes.html", "findings.json"]
    assert "+from fsdp_migrate.runtime" in (job.folder / "changes.diff").read_text()
    job.workspace = repository.parent
    after = job.step("Check", path="training", before="v1")
    assert after.returncode == 1  # FSDP1 came back
    assert "::warning file=training/train.py" in after.stdout


@pytest.mark.thorough
def test_a_migrated_repository_passes_and_a_fault_does_not(repository: Path, job: Job) -> None:
    inputs = {"path": str(repository), "entry": "train.py", "device": "cpu", "before": "v1"}
    inputs |= {"arguments": "--steps '2'", "options": "--launcher python"}
    subprocess.run([TOOL / "fsdp-migrate", "migrate", repository], check=True, capture_output=True)
    assert job.step("Check", **inputs).returncode == 0

    done = job.step("Verify", **inputs)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same: 2 losses on 2 ranks" in done.stdout
    assert "### ✅ fsdp-migrate verify: `train.py`" in (job.temp / "summary.md").read_text()
    assert (job.folder / "verdict.json").exists()

    script = repository / "train.py"
    script.write_text(script.read_text().replace("        sync_module_states=True,\n", ""))
    assert job.step("Start").returncode == 0  # used again in the same job
    done = job.step("Verify", **inputs)
    assert done.returncode == 1, done.stdout + done.stderr
    summary = (job.temp / "summary.md").read_text()
    assert "the programs begin with different weights" in summary


def test_the_artifact_is_what_the_steps_write() -> None:
    upload = next(s for s in ACTION["runs"]["steps"] if "upload-artifact" in s.get("uses", ""))
    written = "".join(STEPS["Check"]["run"] + STEPS["Verify"]["run"])
    for line in upload["with"]["path"].splitlines():
        assert f"{line.rpartition('*')[2]}" in written
    assert upload["if"] == "always()"
