"""Writing in place: all files of a run or none, because the files of one model belong together."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from fsdp_migrate import git
from fsdp_migrate.findings import Problem
from fsdp_migrate.report import Change
from fsdp_migrate.source import shown_path


def dirty_problems(changes: Sequence[Change]) -> list[Problem]:
    """A problem for each file that git could not bring back; none where there is no repository."""
    reason = "has uncommitted changes: commit them first, or use --allow-dirty"
    real = {Path(os.path.realpath(change.path)): change.path for change in changes}
    return [Problem(shown_path(real[file]), 0, reason) for file in git.uncommitted(real)]


def write_changes(changes: Sequence[Change]) -> list[Problem]:
    """Writes every change, or none and says why.

    Each new content is first written to a temporary file beside its target, with the target's
    permissions, and put in place in one step; a link stays a link.
    """
    staged: list[tuple[str, str]] = []
    problems: list[Problem] = []
    try:
        for change in changes:
            target = os.path.realpath(change.path)
            with _noted(problems, change.path):
                _refuse_if_touched(target, change)
                staged.append((_stage(target, change.after), target))
        while staged and not problems:
            temporary, target = staged[0]
            with _noted(problems, Path(target)):
                os.replace(temporary, target)
                del staged[0]
    finally:
        for temporary, _ in staged:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
    return problems


@contextlib.contextmanager
def _noted(problems: list[Problem], path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        problems.append(Problem(shown_path(path), 0, f"cannot be written: {reason}"))


def _refuse_if_touched(target: str, change: Change) -> None:
    if change.is_new and not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        return
    mode = os.stat(target).st_mode
    if not mode & 0o222 or not os.access(target, os.W_OK):
        raise OSError("it is read-only")
    if Path(target).read_bytes() != change.before:
        raise OSError("it was changed while it was analysed")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _stage(target: str, content: bytes) -> str:
    folder, name = os.path.split(target)
    handle, temporary = tempfile.mkstemp(prefix=f".{name[:50]}.", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        if os.path.exists(target):
            shutil.copymode(target, temporary)
        else:
            os.chmod(temporary, 0o666 & ~_umask())
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary
