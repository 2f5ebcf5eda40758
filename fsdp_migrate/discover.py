"""From paths on the command line to the files that they mean: Python, and configurations that set FSDP.

Git's own list is taken where there is a repository, so that .gitignore holds exactly; elsewhere the
folder is walked. Files that are named are always taken.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from pathlib import Path, PurePath

from fsdp_migrate import git
from fsdp_migrate.findings import Problem
from fsdp_migrate.search import Search
from fsdp_migrate.source import CONFIGURATIONS, shown_path

# Other people's code, wherever it is.
_FOREIGN = frozenset({".venv", "node_modules", "site-packages", "__pycache__"})
# Without git's list, also what is rarely a source folder, unless it is a package.
_BUILT = frozenset({"build", "dist", "venv"})
_WORDS = (b"fullyshardeddataparallel", b"torch.distributed._composable")
# What takes parameters, and asks them what sharded ones answer otherwise, maybe those of a model that another file shards.
_TAKES = Search(rb"parameters\(|\bparam_groups\b|\.grad\b")
_ASKS = Search(
    rb"clip_grad_norm_|all_reduce|numel\(|nelement\(|\.grad\.|allclose\(|isfinite\(|isnan\(|isinf\(|\bnorm|\.n?dim\b"
    rb"|len\(\w+\.shape|[(*=]\w+\.(?:\w+\.)?s(?:hape|ize)\b"
)
_ACCELERATE = Search(
    rb"import[^\n]*\bAccelerator\b|accelerator\.|Trainer\)\s*:|\bTrainer\(|:\s*[\w.]*Trainer\b"
)
# More than a word of a docstring: it is beside what joins words in code, in a comment, or a name; `import *` binds any name.
_CODE = re.compile(
    rb"[\w.\"'=-]fsdp|fsdp(?:[\w\"'()\]]|\.\w|[ \t]*=)|(?:#|\bimport\b|\bas\b|\bfrom[ \t]+torch\b|\r).*fsdp"
    rb"|^[ \t]*(?:[\w, ]+,[ \t]*)?fsdp[ \t]*(?:,|:|\s*$)|[{,][ \t]*fsdp:|[([=][ \t]*fsdp\b"
)
_PROGRAMS = (".py", ".ipynb")
_KINDS = (*_PROGRAMS, *CONFIGURATIONS)
# A setting of FSDP, by its name or its value: more than the word in a path or a sentence.
_SETTING = re.compile(
    rb"fsdp_[\w.]+['\"]?[ \t]*[:=]|\bfsdp['\"]?[ \t]*:|--fsdp|use[_-]fsdp|"
    rb"(?:strategy|type|class_path|_target_)['\"]?[ \t]*[:=].*fsdp|torch\.distributed\.fsdp\.",
    re.IGNORECASE,
)
_NOTHING = "no Python, notebook or configuration files found"
_ALL_EXCLUDED = "`exclude` leaves out every file"
_LARGE = 1 << 20  # bytes: more is data, not a configuration
_MOST = 5_000  # files around one that is in no repository


@dataclass
class Discovered:
    """What the paths of one run mean: files, each once and in order, and problems.

    Attributes:
        passed: folders in which there is nothing to read.
        contents: what is in a file, where that is not what the disk has.
        others: looks for the other Python files around, which may work on the models of these.
        given: the paths.
        excluded: whether a pattern leaves a file out.
    """

    files: list[Path] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    passed: list[Problem] = field(default_factory=list)
    contents: Mapping[Path, bytes] = field(default_factory=dict)
    others: Callable[[], list[Path]] = list
    given: Sequence[Path] = ()
    excluded: Callable[[str], bool] = lambda file: False


def mentions_fsdp(data: bytes, path: str = "") -> bool:
    """Whether a file can hold an FSDP construct, by a byte search; a configuration must set it, code more than speak of it."""
    lowered = data.lower()
    is_named = b"fsdp" in lowered
    if path.endswith(CONFIGURATIONS):
        if is_named:
            lines = zip(data.split(b"\n"), lowered.split(b"\n"), strict=True)
            return any(_SETTING.search(line) for line, low in lines if b"fsdp" in low)
        is_settings = b"transformer_layer_cls_to_wrap" in lowered or b"min_num_params" in lowered
        return is_settings and "fsdp" in os.path.basename(path)
    if is_named and b"import *" not in lowered:
        is_named = any(_CODE.search(line) for line in lowered.split(b"\n") if b"fsdp" in line)
    return is_named or any(word in lowered for word in _WORDS)


def takes_parameters(data: bytes) -> bool:
    """Whether a Python file may ask parameters, which may be a sharded model's, what sharded ones answer otherwise."""
    return _TAKES(data) and _ASKS(data)


def uses_accelerate(data: bytes, path: str = "") -> bool:
    """Whether a program can train a model that Accelerate or transformers' Trainer shards, by a byte search."""
    return path.endswith(_PROGRAMS) and _ACCELERATE(data)


def discover(
    paths: Sequence[Path], exclude: Sequence[str] = (), root: Path | None = None
) -> Discovered:
    """All files that `paths` mean, but those in folders that a pattern, relative to `root`, excludes."""
    excluded = _Excluded(exclude, root or Path.cwd())
    found = Discovered(given=paths, excluded=excluded)
    seen: dict[str, str] = {}
    for path in map(os.fspath, paths):
        if os.path.isdir(path):
            there = False
            left = False
            for file, real in _below(os.path.abspath(path), found.problems):
                kind = file.endswith(_KINDS) or _is_script(file)
                there |= kind
                if kind and not excluded(file):
                    left = True
                    if _is_meant(file):
                        _add(seen, file, real)
            if not left:
                if there:
                    why = _ALL_EXCLUDED
                else:
                    why = _NOTHING
                found.passed.append(Problem(shown_path(Path(path)), 0, why))
        elif problem := _named_problem(path):
            found.problems.append(problem)
        else:
            _add(seen, os.path.abspath(path), os.path.realpath(path))
    found.files = sorted(map(Path, seen.values()))
    found.others = partial(_others, paths, excluded, seen)
    return found


def discover_one(
    path: Path, content: bytes, exclude: Sequence[str] = (), root: Path | None = None
) -> Discovered:
    """One file with a content that the disk does not have, as an editor gives it."""
    file = Path(os.path.abspath(path))
    excluded = _Excluded(exclude, root or Path.cwd())
    others = partial(_others, [file], excluded, {os.path.realpath(file)})
    return Discovered([file], contents={file: content}, others=others)


def _others(paths: Sequence[Path], excluded: _Excluded, known: Collection[str]) -> list[Path]:
    """The Python files of the repositories of files that are named; without one, in and below the folder of such a file.

    A folder that is named is a program by itself.
    """
    given = [*map(os.path.abspath, paths)]
    searched = set(filter(os.path.isdir, given))
    found: dict[str, str] = {}
    for path in given:
        if path in searched:
            continue
        folder = os.path.dirname(path)
        root = git.toplevel(folder)
        around = folder
        if root is not None:
            around = _as_named(os.fspath(root), folder)
        if around in searched:
            continue
        searched.add(around)
        files = _below(around, [])
        if root is None:
            files = islice(files, _MOST)
        for file, real in files:
            if file.endswith(".py") and real not in known and not excluded(file):
                found.setdefault(real, file)
    return sorted(map(Path, found.values()))


def _as_named(root: str, folder: str) -> str:
    """The root of a repository as a path of a folder in it begins, which may lead through a link; git resolves those."""
    above = folder
    while os.path.realpath(above) != os.path.realpath(root):
        if os.path.dirname(above) == above:
            return root
        above = os.path.dirname(above)
    return above


class _Excluded:
    """Whether the user's patterns leave a file out."""

    def __init__(self, patterns: Sequence[str], root: Path) -> None:
        self._spec = None
        self._root = os.path.abspath(root)
        if patterns:
            import pathspec  # takes longer to import than many a tree to list

            self._spec = pathspec.GitIgnoreSpec.from_lines(patterns)

    def __call__(self, file: str) -> bool:
        if self._spec is None:
            return False
        relative = os.path.relpath(file, self._root)
        return self._spec.match_file(PurePath(relative).as_posix())


def _is_meant(file: str) -> bool:
    """Whether a file of a kind that is read has anything to say; a program always has."""
    return not file.endswith(CONFIGURATIONS) or _sets_fsdp(file)


def _is_script(file: str) -> bool:
    """Whether a file without an ending is a program for Python, by its first line."""
    if not os.access(file, os.X_OK):
        return False
    try:
        with open(file, "rb") as stream:
            return re.match(rb"#!.*\bpython", stream.readline(_LARGE)) is not None
    except OSError:
        return False


def _can_be_meant(name: str) -> bool:
    return name.endswith(_KINDS) or "." not in os.path.basename(name)


def _sets_fsdp(file: str) -> bool:
    try:
        with open(file, "rb") as stream:
            data = stream.read(_LARGE)
    except OSError:
        return False
    return len(data) < _LARGE and mentions_fsdp(data, file)


def _add(seen: dict[str, str], file: str, real: str) -> None:
    """Takes a file once, under its own name rather than under that of a link to it."""
    if real not in seen or file == real:
        seen[real] = file


def _named_problem(path: str) -> Problem | None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return Problem(shown_path(Path(path)), 0, "does not exist")
    except OSError as error:
        return Problem(shown_path(Path(path)), 0, f"cannot be read: {error.strerror}")
    except ValueError as error:  # a NUL in the name
        return Problem(shown_path(Path(path)), 0, f"cannot be read: {error}")
    if not stat.S_ISREG(mode):
        return Problem(shown_path(Path(path)), 0, "is not a regular file")
    return None


def _below(folder: str, problems: list[Problem]) -> Iterator[tuple[str, str]]:
    """The files below a folder that may be meant, each with its real path, without links that leave it."""
    listed = git.listed_files(folder)
    real_folder = os.path.join(os.path.realpath(folder), "")
    real_path = cache(os.path.realpath)  # a folder may be a link, though git lists files in it
    if listed is None:
        names = _walk(folder, problems)
    else:
        names = _from_git(folder, listed, problems)
    for name in names:
        file = os.path.join(folder, name)
        try:
            mode = os.lstat(file).st_mode
            if stat.S_ISLNK(mode):
                real = os.path.realpath(file)
                mode = os.stat(file).st_mode
            else:
                real = os.path.join(real_path(os.path.dirname(file)), os.path.basename(file))
        except OSError:  # removed, but not from git's list
            continue
        if stat.S_ISREG(mode) and real.startswith(real_folder):
            yield file, real


def _from_git(folder: str, listed: list[str], problems: list[Problem]) -> Iterator[str]:
    for name in listed:
        if not _FOREIGN.isdisjoint(name.split("/")):
            continue
        nested = os.path.join(folder, name).rstrip("/")
        if not os.path.isdir(nested):
            if _can_be_meant(name):
                yield name
        elif os.path.exists(os.path.join(nested, ".git")) and not os.path.islink(nested):
            # a submodule, or a clone inside the repository; a link leads out of it, or in circles
            for file, _ in _below(nested, problems):
                yield os.path.relpath(file, folder)


def _walk(folder: str, problems: list[Problem]) -> Iterator[str]:
    """Files below `folder`, relative to it, where git has no list of them."""

    def unreadable(error: OSError) -> None:
        shown = shown_path(Path(error.filename))
        problems.append(Problem(shown, 0, f"cannot be read: {error.strerror}"))

    for current, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = sorted([name for name in folders if _is_looked_into(current, name)])
        for name in sorted(files):
            if _can_be_meant(name):
                yield os.path.relpath(os.path.join(current, name), folder)


def _is_looked_into(parent: str, name: str) -> bool:
    """Whether a folder can have code of the project: it is not hidden, not built, and no environment."""
    if name in _FOREIGN or (name.startswith(".") and name != ".github"):
        return False
    folder = os.path.join(parent, name)
    if name in _BUILT and not os.path.exists(os.path.join(folder, "__init__.py")):
        return False
    return not os.path.exists(os.path.join(folder, "pyvenv.cfg"))
