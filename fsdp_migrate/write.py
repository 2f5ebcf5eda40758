"""Writing in place: all files of a run or none, because the files of one model belong together."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import stat
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from fsdp_migrate import git
from fsdp_migrate.findings import Problem
from fsdp_migrate.report import Change
from fsdp_migrate.source import shown_path

_NAME = ".fsdp-migrate.tmp"
"""The name that a new file has between two system calls; a run that is killed right there leaves it, the next removes it."""

_SPARE = 64  # handles that the rest of the program may need


def dirty_problems(changes: Sequence[Change]) -> list[Problem]:
    """A problem for each file that git could not bring back; none where there is no repository."""
    reason = "has uncommitted changes: commit them first, or use --allow-dirty"
    old = {Path(os.path.realpath(c.path)): c.path for c in changes if not c.is_new}
    return [Problem(shown_path(old[file]), 0, reason) for file in git.uncommitted(old)]


def write_changes(changes: Sequence[Change]) -> list[Problem]:
    """Writes every change, or none and says why.

    Each new content is first written to a file without a name, with its target's permissions and owner, and put in place
    in one step; a link stays a link, and other hard links of a file keep what they had. What fails midway is undone.
    """
    problems: list[Problem] = []
    with contextlib.ExitStack() as stack:
        root = _root(changes)
        stack.enter_context(_interrupted_by_sigterm())
        with _noted(problems, Path(root)):
            stack.enter_context(_alone_in(root))
        handles = _handles()
        staged: list[tuple[_Staged, Change]] = []
        for change in changes if not problems else ():
            with _noted(problems, change.path):
                new = _Staged(change, root, nameless=len(staged) < handles)
                staged.append((stack.enter_context(new), change))
        if not problems:
            _put_in_place(staged, problems)
    return problems


def _root(changes: Sequence[Change]) -> str:
    """The folder that a run locks, on the way to all of its files: the repository, if there is one."""
    folders = [os.path.dirname(os.path.realpath(change.path)) for change in changes]
    common = os.path.commonpath(folders)
    while not os.path.isdir(common):  # a copy of the runtime goes to a new folder
        common = os.path.dirname(common)
    return os.fspath(git.toplevel(common) or common)


def _handles() -> float:
    """How many files can be open at a time."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if limit == resource.RLIM_INFINITY else limit - _SPARE


def _put_in_place(staged: Sequence[tuple[_Staged, Change]], problems: list[Problem]) -> None:
    """Replaces all targets; what was replaced is put back if one fails, or the run is interrupted."""
    done: list[Change] = []
    try:
        for new, change in staged:
            with _noted(problems, change.path):
                _refuse_if_touched(new.target, change)
                done.append(change)
                new.put_in_place()
            if problems:
                break
    except BaseException:
        _put_back(done, problems)
        raise
    if problems:
        _put_back(done, problems)


def _put_back(done: Sequence[Change], problems: list[Problem]) -> None:
    for change in done:
        target = os.path.realpath(change.path)
        try:
            if Path(target).read_bytes() != change.after:
                continue
            if change.is_new:
                os.unlink(target)
            else:
                back = Change(change.path, change.after, change.before)
                with _Staged(back, os.path.dirname(target), nameless=True) as old:
                    old.put_in_place()
        except OSError as error:
            reason = f"is migrated, and could not be put back: {error.strerror or error}"
            problems.append(Problem(shown_path(change.path), 0, reason))


@contextlib.contextmanager
def _noted(problems: list[Problem], path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        problems.append(Problem(shown_path(path), 0, f"cannot be written: {reason}"))


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


@contextlib.contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """Keeps other runs from writing below a folder meanwhile, where folders can be locked."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise OSError("another run writes here") from None
    except OSError:  # a file system without locks
        pass
    try:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, _NAME))
        yield
    finally:
        os.close(handle)


def _refuse_if_touched(target: str, change: Change) -> None:
    if change.is_new and not os.path.lexists(target):
        return
    mode = os.stat(target).st_mode
    if not mode & 0o222 or not os.access(target, os.W_OK):
        raise OSError("it is read-only")
    if Path(target).read_bytes() != change.before:
        raise OSError("it was changed while it was analysed")


class _Staged:
    """A new content on the disk of its target, without a name until it is put in place, where the system allows that.

    `root` is a folder around the target; if it is `nameless`, a handle may be kept open.
    """

    def __init__(self, change: Change, root: str, *, nameless: bool) -> None:
        self._change = change
        self.target = os.path.realpath(change.path)
        self._folder = os.path.dirname(self.target)
        self._root = root
        self._handle: int | None = None
        self._name = ""
        self._may_be_nameless = nameless and os.path.exists("/proc/self/fd")
        self._made: list[str] = []

    def __enter__(self) -> _Staged:
        try:
            if self._change.is_new:
                self._make_folder()
            _refuse_if_touched(self.target, self._change)
            handle = self._open()
            with open(handle, "wb", closefd=handle != self._handle) as file:
                file.write(self._change.after)
                file.flush()
                _copy_rights(self.target, handle)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _make_folder(self) -> None:
        folder = self._folder
        while not os.path.isdir(folder):
            self._made.append(folder)
            folder = os.path.dirname(folder)
        os.makedirs(self._folder, exist_ok=True)

    def _open(self) -> int:
        if self._may_be_nameless:
            try:
                self._handle = os.open(self._folder, os.O_TMPFILE | os.O_WRONLY, 0o666)
                return self._handle
            except (AttributeError, OSError):  # another system, a file system without it
                pass
        self._name = os.path.join(self._folder, f"{_NAME}-{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        return os.open(self._name, flags, 0o666)

    def put_in_place(self) -> None:
        """Gives the content its target's name."""
        if self._handle is not None:
            same = os.stat(self._root).st_dev == os.stat(self._folder).st_dev
            name = os.path.join(self._root if same else self._folder, _NAME)
            source = f"/proc/self/fd/{self._handle}"
            self._name = name  # an interrupt may follow the link at once
            os.link(source, name, src_dir_fd=self._handle, follow_symlinks=True)
        os.replace(self._name, self.target)
        self._name, self._made = "", []

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            if self._handle is not None:
                os.close(self._handle)
            if self._name:
                os.unlink(self._name)
            for folder in self._made:
                os.rmdir(folder)


def _copy_rights(target: str, handle: int) -> None:
    """The mode and the owner of the target, if there is one, for the file that takes its place."""
    if not os.path.exists(target) or not hasattr(os, "fchown"):
        return
    old, new = os.stat(target), os.fstat(handle)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        try:
            os.fchown(handle, old.st_uid, old.st_gid)
        except PermissionError:
            raise OSError("its owner or group could not be kept") from None
    os.fchmod(handle, stat.S_IMODE(old.st_mode))
