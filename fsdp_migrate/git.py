"""The few questions that are asked of git; it need not be there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

# Set inside git hooks; they would point every question at the repository of the hook.
_HOOK_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")


def toplevel(folder: str | Path) -> Path | None:
    """The root of the repository that `folder` lies in, if any."""
    answer = _git(folder, "rev-parse", "--show-toplevel")
    return Path(os.fsdecode(answer.rstrip(b"\r\n"))) if answer else None


def listed_files(folder: str | Path) -> list[str] | None:
    """Tracked files below `folder`, and untracked ones that are not ignored, relative to it.

    A nested repository is one entry, its folder. None where there is no git or no
    repository, or if `folder` itself is ignored: git has no list of it.
    """
    answer = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if answer is None or (not answer and _git(folder, "check-ignore", "-q", ".") is not None):
        return None
    return [os.fsdecode(entry) for entry in dict.fromkeys(answer.split(b"\0")) if entry]


def uncommitted(files: Iterable[Path]) -> list[Path]:
    """Those of `files` that git could not bring back, ignored ones among them; none where there is no repository."""
    by_folder: dict[Path, list[Path]] = {}
    for file in files:
        by_folder.setdefault(file.parent, []).append(file)
    return [
        file
        for folder, members in by_folder.items()
        for file in members
        if _git(folder, "status", "--porcelain", "-z", "--ignored", "--", f":(literal){file.name}")
    ]


def _git(folder: str | Path, *arguments: str) -> bytes | None:
    environment = {key: value for key, value in os.environ.items() if key not in _HOOK_VARIABLES}
    command: Sequence[str] = ("git", "-C", os.fspath(folder), *arguments)
    try:
        done = subprocess.run(command, capture_output=True, env=environment, check=False)
    except OSError:  # no git on this machine
        return None
    return done.stdout if done.returncode == 0 else None
