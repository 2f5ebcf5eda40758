"""Writing in place: all files of a run or none, because the files of one model belong together."""

import contextlib
import os
import secrets
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from fsdp_migrate import git
from fsdp_migrate.findings import Problem
from fsdp_migrate.report import Change
from fsdp_migrate.source import shown_path


def dirty_problems(changes: Sequence[Change]) -> list[Problem]:
    """A problem for each file that git could not bring back; none where there is no repository."""
    reason = "has uncommitted changes: commit them first, or use --allow-dirty"
    old = {Path(os.path.realpath(c.path)): c.path for c in changes if not c.is_new}
    return [Problem(shown_path(old[file]), 0, reason) for file in git.uncommitted(old)]


def write_changes(changes: Sequence[Change]) -> list[Problem]:
    """Writes every change, or none and says why: what fails midway, or is interrupted, is undone.

    A new content takes its target's place in one step, with the same permissions and owner; a link stays a link, and
    other hard links of a file keep what they had. One run of a machine writes at a time.
    """
    problems: list[Problem] = []
    new = {change.path for change in changes if change.is_new}
    made: list[Path] = []
    done: list[Change] = []
    with _alone(), _interrupted_by_sigterm():
        for change in changes:
            with _noted(problems, change.path, "cannot be written"):
                _refuse_if_touched(change)
        if problems:
            return problems
        try:
            for change in changes:
                with _noted(problems, change.path, "cannot be written"):
                    _refuse_if_touched(change)
                    made += _make_folders(change.path.parent)
                    done.append(change)
                    _replace(change.path, change.after)
                if problems:
                    break
            else:
                done = []
                made = []
        finally:  # after an interrupt as well
            _put_back(done, new, problems)
            for folder in reversed(made):
                with contextlib.suppress(OSError):
                    folder.rmdir()
    return problems


def _put_back(done: Sequence[Change], new: set[Path], problems: list[Problem]) -> None:
    for change in done:
        with _noted(problems, change.path, "is migrated, and could not be put back"):
            if not change.path.exists() or change.path.read_bytes() != change.after:
                continue
            if change.path in new:
                change.path.unlink()
            else:
                _replace(change.path, change.before)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Waits until no other run of this machine writes: two would put back each other's files."""
    with contextlib.ExitStack() as until_written:
        with contextlib.suppress(ImportError, OSError):  # Windows, or a file system without locks
            import fcntl

            folder = os.open(tempfile.gettempdir(), os.O_RDONLY)
            until_written.callback(os.close, folder)
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _noted(problems: list[Problem], path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problems.append(Problem(shown_path(path), 0, f"{what}: {error.strerror or error}"))


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM undoes what was written, as an interrupt by the keyboard does; without a handler it would end the run at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _make_folders(folder: Path) -> list[Path]:
    """Makes a folder for a copy of the runtime, and those above it; returns the new ones, outer ones first."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()][::-1]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _refuse_if_touched(change: Change) -> None:
    if change.is_new and not os.path.lexists(change.path):
        return
    mode = change.path.stat().st_mode
    if not mode & 0o222 or not os.access(change.path, os.W_OK):
        raise OSError("it is read-only")
    if change.path.read_bytes() != change.before:
        raise OSError("it was changed while it was analysed")


def _replace(path: Path, content: bytes) -> None:
    """Gives a file another content, by a file beside it that takes its place."""
    target = os.path.realpath(path)
    name = os.path.join(os.path.dirname(target), f".fsdp-migrate.{secrets.token_hex(8)}.tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with open(os.open(name, flags, 0o666), "wb") as file:
            file.write(content)
            file.flush()
            _copy_rights(target, file.fileno())
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _copy_rights(target: str, handle: int) -> None:
    """The mode and the owner of the target, if there is one, for the file that takes its place."""
    if not os.path.exists(target) or not hasattr(os, "fchown"):
        return
    old = os.stat(target)
    new = os.fstat(handle)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        try:
            os.fchown(handle, old.st_uid, old.st_gid)
        except PermissionError:
            raise OSError("its owner or group could not be kept") from None
    os.fchmod(handle, stat.S_IMODE(old.st_mode))
