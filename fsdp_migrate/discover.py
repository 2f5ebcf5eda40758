"""From paths on the command line to the Python files that they mean.

Git's own list is taken where there is a repository, so that .gitignore holds exactly; elsewhere the
folder is walked and its .gitignore files are read. Files that are named are always taken.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from fsdp_migrate import git
from fsdp_migrate.findings import Problem
from fsdp_migrate.source import shown_path

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

# Other people's code, wherever it is.
_FOREIGN = frozenset({".venv", "node_modules", "site-packages", "__pycache__"})
# Without git's list, also what is rarely a source folder.
_BUILT = frozenset({"build", "dist", "venv"})
_PROGRAMS = (".py", ".ipynb")
_WORDS = (b"fsdp", b"fullyshardeddataparallel", b"torch.distributed._composable")


@dataclass
class Discovered:
    """What the paths of one run mean.

    Attributes:
        files: each file once and in order, as an absolute path.
        named: those of them that were named, not found in a folder.
        problems: the paths that could not be taken.
    """

    files: list[Path] = field(default_factory=list)
    named: list[Path] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def mentions_fsdp(data: bytes) -> bool:
    """Whether a file can hold an FSDP construct at all, by a byte search."""
    lowered = data.lower()
    return any(word in lowered for word in _WORDS)


def discover(
    paths: Sequence[Path],
    exclude: Sequence[str] = (),
    root: Path | None = None,
) -> Discovered:
    """All Python files that `paths` mean.

    Args:
        paths: files and folders.
        exclude: patterns as in .gitignore, for files below the folders; named files are taken.
        root: the folder that the patterns are relative to; the current one if None.
    """
    found = Discovered()
    excluded = _Excluded(exclude, root or Path.cwd())
    seen: dict[str, str] = {}
    named: set[str] = set()
    for path in map(os.fspath, paths):
        if os.path.isdir(path):
            for file, real in _below(os.path.abspath(path)):
                if not excluded(file):
                    _add(seen, file, real)
        elif problem := _named_problem(path):
            found.problems.append(problem)
        else:
            _add(seen, os.path.abspath(path), real := os.path.realpath(path))
            named.add(real)
    found.files = sorted(map(Path, seen.values()))
    found.named = sorted(Path(seen[real]) for real in named)
    return found


class _Excluded:
    """Whether the user's patterns leave a file out."""

    def __init__(self, patterns: Sequence[str], root: Path) -> None:
        self._spec = _patterns(patterns) if patterns else None
        self._root = os.path.abspath(root)

    def __call__(self, file: str) -> bool:
        if self._spec is None:
            return False
        relative = os.path.relpath(file, self._root)
        return self._spec.match_file(PurePath(relative).as_posix())


def _patterns(lines: Iterable[str]) -> GitIgnoreSpec:
    import pathspec  # takes longer to import than many a tree to list

    return pathspec.GitIgnoreSpec.from_lines(lines)


def _add(seen: dict[str, str], file: str, real: str) -> None:
    """Takes a file once, under its own name rather than under that of a link to it."""
    if real not in seen or file == real:
        seen[real] = file


def _named_problem(path: str) -> Problem | None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return Problem(shown_path(Path(path)), 0, "does not exist")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", error)
        return Problem(shown_path(Path(path)), 0, f"cannot be read: {reason}")
    if not stat.S_ISREG(mode):
        return Problem(shown_path(Path(path)), 0, "is not a regular file")
    return None


def _below(folder: str) -> Iterator[tuple[str, str]]:
    """The Python files below a folder, each with its real path, without links that leave it."""
    listed = git.listed_files(folder)
    real_folder = os.path.join(os.path.realpath(folder), "")
    for name in _walk(folder) if listed is None else _from_git(folder, listed):
        file = os.path.join(folder, name)
        real = real_folder + name
        try:
            mode = os.lstat(file).st_mode
            if stat.S_ISLNK(mode):
                real = os.path.realpath(file)
                mode = os.stat(file).st_mode
        except OSError:  # removed, but not from git's list
            continue
        if stat.S_ISREG(mode) and real.startswith(real_folder):
            yield file, real


def _from_git(folder: str, listed: list[str]) -> Iterator[str]:
    for name in listed:
        if not _FOREIGN.isdisjoint(name.split("/")):
            continue
        if name.endswith(_PROGRAMS) and not os.path.isdir(os.path.join(folder, name)):
            yield name
        elif name.endswith("/") or os.path.isdir(os.path.join(folder, name)):
            nested = os.path.join(folder, name)
            if os.path.exists(
                os.path.join(nested, ".git")
            ):  # a submodule, or a clone inside the repository
                for file, _ in _below(nested):
                    yield os.path.join(name, os.path.relpath(file, nested))


def _walk(folder: str) -> Iterator[str]:
    """Python files below `folder`, relative to it, without those that its .gitignore files name."""
    rules: dict[str, GitIgnoreSpec] = {}
    for current, folders, files in os.walk(folder):
        relative = os.path.relpath(current, folder)
        here = "" if relative == os.curdir else relative
        if ".gitignore" in files:
            lines = Path(current, ".gitignore").read_text("utf-8", "replace").splitlines()
            rules[here] = _patterns(lines)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _FOREIGN | _BUILT
            and not os.path.exists(os.path.join(current, name, "pyvenv.cfg"))
            and not _ignored(rules, os.path.join(here, name), is_folder=True)
        )
        for name in sorted(files):
            if name.endswith(_PROGRAMS) and not _ignored(rules, os.path.join(here, name)):
                yield os.path.join(here, name)


def _ignored(rules: dict[str, GitIgnoreSpec], name: str, is_folder: bool = False) -> bool:
    """What the nearest .gitignore with a word on `name` says, as git does."""
    if not rules:
        return False
    for parent in PurePath(name).parents:
        spec = rules.get("" if str(parent) == os.curdir else str(parent))
        if spec is None:
            continue
        verdict = spec.check_file(PurePath(name).relative_to(parent).as_posix() + "/" * is_folder)
        if verdict.include is not None:
            return verdict.include
    return False
