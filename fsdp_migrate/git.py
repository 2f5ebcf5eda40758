"""The few questions that are asked of git; it need not be there.

A repository may be untrusted: nothing that its configuration names is run. What git would run for these questions is
switched off (the monitor of files, hooks, transports), and files are compared here, since `git status` runs filters.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

# Set inside git hooks; they would point every question at the repository of the hook.
_HOOK_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")
_HARMLESS = {
    "GIT_ALLOW_PROTOCOL": "none",  # a partial clone would fetch what it lacks, by a program of its choice
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
}
_PATIENCE = 60.0  # git waits without end where .gitignore is a pipe
_SWITCHED_OFF = (
    "core.fsmonitor=false",
    f"core.hooksPath={os.devnull}",
    "core.sshCommand=false",
    "safe.bareRepository=explicit",  # a folder of the tree may look like a repository
)


def toplevel(folder: str | Path) -> Path | None:
    """The root of the repository that `folder` lies in, if any."""
    answer = _git(folder, "rev-parse", "--show-toplevel")
    if answer:
        return Path(os.fsdecode(answer.rstrip(b"\r\n")))
    return None


def commit(folder: str | Path) -> str:
    """The commit that `folder` is at; empty where there is none."""
    return os.fsdecode((_git(folder, "rev-parse", "HEAD") or b"").strip())


def listed_files(folder: str | Path) -> list[str] | None:
    """Tracked files below `folder`, and untracked ones that are not ignored, relative to it; a nested repository is one
    entry.

    None where there is no git or no repository, or if `folder` itself is ignored.
    """
    answer = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if answer is None or (not answer and _git(folder, "check-ignore", "-q", ".") is not None):
        return None
    return [os.fsdecode(entry) for entry in dict.fromkeys(answer.split(b"\0")) if entry]


def uncommitted(files: Iterable[Path]) -> list[Path]:
    """Those of `files` that the last commit does not have as they are; none where there is no repository.

    A file that differs in its line ends alone was checked out like that.
    """
    by_root: dict[Path, list[Path]] = {}
    roots = cache(toplevel)
    for file in files:
        root = roots(file.parent)
        if root is not None:
            by_root.setdefault(root, []).append(file)
    return [file for root, members in by_root.items() for file in _differing(root, members)]


def _differing(root: Path, files: list[Path]) -> Iterator[Path]:
    """The files of a repository whose content is no blob of the last commit under their name."""
    answer = _git(root, "ls-tree", "-r", "-z", "HEAD") or b""
    entries = [entry.partition(b"\t") for entry in answer.split(b"\0") if entry]
    blobs = {os.fsdecode(name): about.split(b" ")[-1].decode() for about, _, name in entries}
    for file in files:
        name = os.path.relpath(os.path.realpath(file), os.path.realpath(root))
        blob = blobs.get(Path(name).as_posix(), "")
        data = file.read_bytes()
        if blob not in (_blob(data, blob), _blob(data.replace(b"\r\n", b"\n"), blob)):
            yield file


def _blob(data: bytes, like: str) -> str:
    """The name that git gives to a content, by the algorithm that it gave another name by."""
    import hashlib  # for the few runs that write

    if len(like) == 64:
        algorithm = hashlib.sha256
    else:
        algorithm = hashlib.sha1
    return algorithm(b"blob %d\0" % len(data) + data).hexdigest()


def _git(folder: str | Path, *arguments: str) -> bytes | None:
    program = _program()
    if program is None:
        return None
    environment = {key: value for key, value in os.environ.items() if key not in _HOOK_VARIABLES}
    switches = [word for switch in _SWITCHED_OFF for word in ("-c", switch)]
    command = [program, *switches, "-C", os.fspath(folder), *arguments]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment | _HARMLESS,
            check=False,
            timeout=_PATIENCE,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):  # ValueError: a NUL in a name
        return None
    if done.returncode == 0:
        return done.stdout
    return None


@cache
def _program() -> str | None:
    """Where git is; not in the current folder, which `PATH` may name."""
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = shutil.which("git", path=os.pathsep.join(filter(os.path.isabs, path)))
    if found and os.path.isabs(found):
        return found
    return None
