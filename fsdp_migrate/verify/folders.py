"""Temporary copies of a program's folder: nothing that a program writes there reaches the user's tree.

A script's folder is copied whole; of a repository what git lists, so that data and results which it ignores stay
where they are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate import git
from fsdp_migrate.verify.errors import Unverifiable

_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".hg", ".svn", "__pycache__", ".venv", ".tox", ".nox", ".mypy_cache", ".ruff_cache"
)


@dataclass(frozen=True)
class Program:
    """A script in a copy of its folder.

    Attributes:
        name: `original` or `migrated`.
        root: the copy.
        source: the folder that was copied.
        start: the folder in the copy to run it in; None: the user's working folder if that is in the copy, else
            the script's.
        twin: the folder that the other program was copied from: an installation may lead into it.
    """

    name: str
    root: Path
    script: Path
    source: Path
    start: Path | None = None
    twin: Path | None = None

    def inside(self, path: Path) -> Path | None:
        """Where a path of the user's tree is in the copy; None if it is outside."""
        try:
            return self.root / path.resolve().relative_to(self.source)
        except ValueError:
            return None

    @property
    def folder(self) -> Path:
        """Where to run it."""
        return self.start or self.inside(Path.cwd()) or self.script.parent


def copy(
    name: str,
    path: Path,
    target: Path,
    *,
    entry: Path | None = None,
    root: Path | None = None,
    links: Sequence[Path] = (),
) -> Program:
    """Copy a script with its folder, or with the folder `root` around it, or a repository, in which `entry` is the
    script.

    Git ignores what is in `links`, but the copy of a repository leads there.
    """
    if not path.is_dir():
        if entry is not None or links:
            raise Unverifiable(f"{path} is a script: --entry and --link are for a folder")
        return copy_program(name, path, root, target)
    if entry is None:
        raise Unverifiable(f"{path} is a folder: name the script to run with --entry")
    folder = path.resolve()
    script = _below(folder, entry)
    if script is None or not script.is_file():
        raise Unverifiable(f"--entry {entry}: no such file in {folder}")
    source = _source(folder, root)
    copied = target / (source.name or "program")
    if not _copy_listed(source, copied):
        _copy(source, copied)
    start = copied / folder.relative_to(source)
    for link in links:
        _link(link, folder, start)
    place = start / script.relative_to(folder)
    if not place.exists():
        raise Unverifiable(f"--entry {entry}: git ignores it, so it is no part of the repository")
    return Program(name, copied, place, source, start)


def copy_program(name: str, script: Path, root: Path | None, target: Path) -> Program:
    """Copy the folder of a script into `target`, or the folder `root` if it contains the script."""
    if not script.is_file():
        raise Unverifiable(f"{script}: no such file")
    script = script.resolve()
    source = _source(script.parent, root)
    copied = target / (source.name or "program")
    _copy(source, copied)
    return Program(name, copied, copied / script.relative_to(source), source)


def _source(folder: Path, root: Path | None) -> Path:
    """The folder to copy: the one that is asked for, if it contains the program's own."""
    source = (root or folder).resolve()
    return source if folder.is_relative_to(source) else folder


def _copy_listed(source: Path, target: Path) -> bool:
    """Copy what git lists, of nested repositories, too; False where it has no list."""
    listed = git.listed_files(source)
    if listed is None:
        return False
    files = list(_files(source, listed))
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
            yield from (Path(name) / file for file in _files(path, nested))


def _link(link: Path, folder: Path, start: Path) -> None:
    goal = _below(folder, link)
    if goal is None or not goal.exists():
        raise Unverifiable(f"--link {link}: nothing of that name in {folder}")
    place = start / goal.relative_to(folder)
    if not os.path.lexists(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(goal)


def _below(folder: Path, name: Path) -> Path | None:
    """A path in a folder; None if it leads out of it. Links are not followed."""
    path = Path(os.path.normpath(folder / name))
    return path if path.is_relative_to(folder) else None


def _copy(source: Path, target: Path) -> None:
    def ignore(folder: str, names: list[str]) -> set[str]:
        return set(_LEFT_OUT(folder, names)) | {
            name for name in names if not _copyable(os.path.join(folder, name))
        }

    shutil.copytree(source, target, symlinks=True, ignore=ignore)
    for folder, folders, files in os.walk(target):
        for name in folders + files:
            _retarget(Path(folder, name), source / Path(folder).relative_to(target))


def _copyable(path: str) -> bool:
    return os.path.islink(path) or os.path.isfile(path) or os.path.isdir(path)


def _retarget(link: Path, place: Path) -> None:
    """A relative link that leads out of the folder must lead to the same place from the copy."""
    if not link.is_symlink():
        return
    goal = os.readlink(link)
    if not os.path.isabs(goal) and not link.exists():
        link.unlink()
        link.symlink_to(os.path.abspath(place / goal))
