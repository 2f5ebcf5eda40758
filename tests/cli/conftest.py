"""A git repository to run the command line in."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


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
