"""Temporary copies of a program's folder: nothing that a program writes lands in the user's tree."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".hg", ".svn", "__pycache__", ".venv", ".tox", ".nox", ".mypy_cache", ".ruff_cache"
)


@dataclass(frozen=True)
class Program:
    """A script in a copy of its folder.

    Attributes:
        name: `original` or `migrated`.
        root: the copy.
        script: the script in the copy.
        source: the folder that was copied.
    """

    name: str
    root: Path
    script: Path
    source: Path

    def inside(self, path: Path) -> Path | None:
        """Where a path of the user's tree is in the copy; None if it is outside."""
        try:
            return self.root / path.resolve().relative_to(self.source)
        except ValueError:
            return None

    @property
    def folder(self) -> Path:
        """Where to run it: the user's working folder if that is in the copy, else the script's."""
        return self.inside(Path.cwd()) or self.script.parent


def copy_program(name: str, script: Path, root: Path | None, target: Path) -> Program:
    """Copy the folder of a script into `target`.

    Args:
        root: the folder to copy; the script's own if it is None or does not contain the script.
    """
    script = script.resolve()
    source = (root or script.parent).resolve()
    if not script.is_relative_to(source):
        source = script.parent
    copy = target / (source.name or "program")
    _copy(source, copy)
    return Program(name, copy, copy / script.relative_to(source), source)


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
