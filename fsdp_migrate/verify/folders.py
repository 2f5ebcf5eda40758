"""Temporary copies of a program's folder: nothing that a program writes there reaches the user's tree.

A script's folder is copied whole; of a repository what git lists, so that data and results which it ignores stay
where they are.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from fsdp_migrate import git
from fsdp_migrate.verify.entries import proposal
from fsdp_migrate.verify.errors import Unverifiable

_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".hg", ".svn", "__pycache__", ".venv", ".tox", ".nox", ".mypy_cache", ".ruff_cache"
)
# A folder with more than this, such as /tmp, is hardly the program's own.
_MOST_FILES = 10_000
_MOST_GIGABYTES = 2


@dataclass(frozen=True)
class Program:
    """A script in a copy of its folder.

    Attributes:
        name: `original` or `migrated`.
        root: the copy.
        source: the folder that was copied.
        twin: the folder that the other program was copied from: an installation may lead into it.
    """

    name: str
    root: Path
    script: Path
    source: Path
    twin: Path | None = None

    def inside(self, path: Path) -> Path | None:
        """Where a path of the user's tree, or of the other program's, is in the copy; None if it is outside."""
        for folder in filter(None, (self.source, self.twin)):
            if path.resolve().is_relative_to(folder):
                return self.root / path.resolve().relative_to(folder)
        return None

    @property
    def folder(self) -> Path:
        """Where to run it: the user's working folder if that is in the copy, else the copy itself."""
        working = self.inside(Path.cwd())
        if working is not None and working.is_dir():
            return working
        return self.root


def copy(
    name: str, path: Path, target: Path, *, entry: Path | None = None, links: Sequence[Path] = ()
) -> Program:
    """Copy a script with its folder, or a repository, in which `entry` is the script.

    What is in `links` is not copied: the copy leads there.
    """
    repository = path.is_dir()
    if not repository and entry is not None:
        raise Unverifiable(f"{path} is a script: --entry is for a folder")
    if repository and entry is None:
        raise Unverifiable(f"{path} is a folder: {proposal(path)}")
    if repository:
        folder = path.resolve()
    else:
        folder = path.resolve().parent
    script = _below(folder, entry or Path(path.resolve().name))
    if script is None or not script.is_file():
        if entry:
            raise Unverifiable(f"--entry {entry}: no such file in {folder}")
        raise Unverifiable(f"{path}: no such file")
    copied = target / (folder.name or "program")
    linked = [_goal(link, folder) for link in links]
    if not repository or not _copy_listed(folder, copied, linked):
        _copy(folder, copied, linked)
    for goal in linked:
        _link(goal, copied / goal.relative_to(folder))
    place = copied / script.relative_to(folder)
    if not place.exists():
        raise Unverifiable(f"--entry {entry}: git ignores it, so it is no part of the repository")
    return Program(name, copied, place, folder)


def _copy_listed(source: Path, target: Path, linked: Sequence[Path]) -> bool:
    """Copy what git lists, of nested repositories, too; False where it has no list."""
    listed = git.listed_files(source)
    if listed is None:
        return False
    files = [
        file
        for file in _files(source, listed)
        if not any(map((source / file).is_relative_to, linked))
    ]
    for file in files:
        place = target / file
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / file, place, follow_symlinks=False)
    for file in files:
        _retarget(target / file, (source / file).parent)
    return True


def _files(folder: Path, listed: list[str]) -> Iterator[Path]:
    for name in listed:
        path = folder / name
        if path.is_symlink() or path.is_file():  # else it was deleted, and not committed
            yield Path(name)
        elif (path / ".git").exists():
            nested = git.listed_files(path) or []
            for file in _files(path, nested):
                yield Path(name) / file


def _goal(link: Path, folder: Path) -> Path:
    goal = _below(folder, link)
    if goal is None or not goal.exists():
        raise Unverifiable(f"--link {link}: nothing of that name in {folder}")
    return goal


def _link(goal: Path, place: Path) -> None:
    if not os.path.lexists(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(goal)


def compared(before: Program, after: Program) -> tuple[tuple[str, ...], str]:
    """The migrated program's Python files that differ or are new, and a unified diff of all.

    To be called before the programs run, which may write files of their own.
    """
    olds = _texts(before)
    news = _texts(after)
    script, other = [str(p.script.relative_to(p.root)) for p in (before, after)]
    if script != other:
        # Two scripts, maybe of one folder: one takes the place of the other.
        news.pop(script, None)
        olds[other] = olds.pop(script)
    names = [n for n in sorted(olds.keys() | news.keys()) if olds.get(n) != news.get(n)]
    lines: list[str] = []
    for name in names:
        both = olds.get(name, "").splitlines(), news.get(name, "").splitlines()
        lines += unified_diff(*both, f"a/{name}", f"b/{name}", lineterm="")
    return tuple(name for name in names if name in news), "\n".join(lines)


def _texts(program: Program) -> dict[str, str]:
    return {
        str(path.relative_to(program.root)): path.read_text("utf-8", errors="backslashreplace")
        for path in program.root.rglob("*.py")
        if path.is_file()
    }


def _below(folder: Path, name: Path) -> Path | None:
    """A path in a folder; None if it leads out of it. Links are not followed."""
    path = Path(os.path.normpath(folder / name))
    if path.is_relative_to(folder):
        return path
    return None


def _copy(source: Path, target: Path, linked: Sequence[Path]) -> None:
    """Copy a folder as a whole, unless it is so large that it cannot be meant."""

    def ignore(folder: str, names: list[str]) -> set[str]:
        paths = {name: Path(folder, name) for name in names}
        other = {name for name, path in paths.items() if _is_left_out(path, target, linked)}
        return set(_LEFT_OUT(folder, names)) | other

    files = 0
    size = 0
    for folder, folders, names in os.walk(source):
        without = ignore(folder, [*folders, *names])
        folders[:] = [name for name in folders if name not in without]
        for name in set(names) - without:
            files += 1
            size += os.lstat(os.path.join(folder, name)).st_size
        if files > _MOST_FILES or size > _MOST_GIGABYTES * 10**9:
            raise Unverifiable(
                f"{source} has more than {_MOST_FILES:,} files or {_MOST_GIGABYTES} GB, too much to copy: put the program "
                "into a folder of its own, or add --link DATA for each folder there that it only reads"
            )
    shutil.copytree(source, target, symlinks=True, ignore=ignore)
    for path in target.rglob("*"):
        _retarget(path, (source / path.relative_to(target)).parent)


def _is_left_out(path: Path, target: Path, linked: Sequence[Path]) -> bool:
    """Whether a path is no part of the program: a virtual environment, a socket, what holds the copy itself."""
    if path in linked or target.is_relative_to(path):
        return True
    if path.is_symlink():
        return False
    return (path / "pyvenv.cfg").exists() or not (path.is_file() or path.is_dir())


def _retarget(link: Path, place: Path) -> None:
    """A relative link that leads out of the folder must lead to the same place from the copy."""
    if not link.is_symlink():
        return
    goal = os.readlink(link)
    if not os.path.isabs(goal) and not link.exists():
        link.unlink()
        link.symlink_to(os.path.abspath(place / goal))
