"""A command line that is run in this process, on the real engine or on one that replaces a word.

The second is for what the command line makes of a report, whatever the rules are.
"""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from fsdp_migrate.discover import Discovered, mentions_fsdp
from fsdp_migrate.findings import Action, Finding
from fsdp_migrate.report import Change, Report
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source, parse_problem, read_source

from ..conftest import Result


def _finding(source: Source, number: int, line: str, action: Action) -> Finding:
    column = line.index("FSDP") + 1
    return Finding(
        source.shown, number, column, number, column + 4, "FSDP002", "fake-rule", action,
        "FSDP becomes FSDP2", "FSDP",
    )  # fmt: skip


def fake_analyse_source(source: Source, options: Options) -> Report:
    """Every `FSDP` becomes `FSDP2`, but for `by hand` lines."""
    report = Report(files=1)
    if not mentions_fsdp(source.data):
        return report
    report.candidates = 1
    if problem := parse_problem(source):
        report.errors.append(problem)
        return report
    lines = source.text.split("\n")
    for number, line in enumerate(lines, 1):
        if "FSDP" not in line or "FSDP2" in line:
            continue
        action = Action.MANUAL if "by hand" in line else Action.REWRITE
        report.findings.append(_finding(source, number, line, action))
        if action is Action.REWRITE:
            lines[number - 1] = line.replace("FSDP", "FSDP2")
    after = source.encode("\n".join(lines))
    if after != source.data:
        report.changes.append(Change(source.path, source.data, after))
    return report


def fake_analyse(
    found: Discovered | Sequence[Path],
    options: Options = Options(),  # noqa: B008
    watch: object = iter,
) -> Report:
    assert isinstance(found, Discovered)
    whole = Report(errors=list(found.problems), files=len(found.files), seconds=0.25)
    for path in found.files:
        source = read_source(path)
        if isinstance(source, Source):
            part = fake_analyse_source(source, options)
            whole.findings += part.findings
            whole.errors += part.errors
            whole.changes += part.changes
            whole.candidates += part.candidates
        else:
            whole.errors.append(source)
    return whole


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The fake engine, in the place of the real one."""
    module = types.ModuleType("fsdp_migrate.engine")
    module.analyse = fake_analyse  # type: ignore[attr-defined]
    module.analyse_source = fake_analyse_source  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fsdp_migrate.engine", module)
    return module


@pytest.fixture
def cli(engine: types.ModuleType, real_cli: Callable[..., Result]) -> Callable[..., Result]:
    """The same on the fake engine."""
    return real_cli


@dataclass(frozen=True)
class Repository:
    """A git repository with the current folder as its root."""

    root: Path

    def git(self, *arguments: str, stdin: bytes = b"", folder: Path | None = None) -> bytes:
        """One git command that must succeed."""
        settings = ("user.name=t", "user.email=t@example.org", "core.autocrlf=false")
        options = [word for setting in settings for word in ("-c", setting)]
        command = ["git", "-C", str(folder or self.root), *options, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, check=False)
        assert done.returncode == 0, (arguments, done.stderr.decode())
        return done.stdout

    def commit(self) -> None:
        """Commits all that is there."""
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "all")


@pytest.fixture
def repository(folder: Path) -> Repository:
    """The current folder, made a repository."""
    made = Repository(folder)
    made.git("init", "-q")
    return made
