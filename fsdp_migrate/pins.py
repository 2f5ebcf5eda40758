"""Which releases of a library a project takes, as its requirements, its own description or its lock file say."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.specifiers import Specifier
from packaging.utils import canonicalize_name

from fsdp_migrate.requirements.declared import Declared, of_lock, of_pip
from fsdp_migrate.requirements.places import files_in, kind_of
from fsdp_migrate.requirements.reading import read

Release = tuple[int, ...]

_PROJECT = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")
# Scripts that install what a project needs.
_SCRIPT = re.compile(r".*(?:install|setup).*\.sh")


@dataclass(frozen=True)
class Pin:
    """One place that limits the releases of a library.

    Attributes:
        text: how the file writes it.
        low: the first release that it takes; empty if it names none.
        high: the first one behind those that it takes; None if it names none.
        is_lock: whether a tool wrote it down.
    """

    path: Path
    line: int
    text: str
    low: Release
    high: Release | None
    is_lock: bool


@dataclass(frozen=True)
class Releases:
    """The releases of a library that a project takes; `said` is the place that says so, in words; "" where none does."""

    low: Release = ()
    high: Release | None = None
    said: str = ""

    def all_before(self, release: Release) -> bool:
        """Whether every release that it takes is older than one."""
        return self.high is not None and self.high <= release

    def all_since(self, release: Release) -> bool:
        """Whether every release that it takes is that one or newer."""
        return self.low >= release


class Pins:
    """The limits around the files of one run; each folder is read once.

    Args:
        files: the files of the run: without a repository no folder above all of them is looked at.
    """

    def __init__(self, files: Iterable[Path | str] = ()) -> None:
        self._top: Path | None = None
        if folders := {os.path.dirname(os.path.abspath(file)) for file in files}:
            self._top = Path(os.path.commonpath(folders))
        self._known: dict[tuple[Path, str], list[Pin]] = {}

    def releases(self, file: Path, name: str) -> Releases:
        """Those of a library that a file meets: the nearest folder above it that limits them says which.

        A lock file says it exactly; of several other places each may hold.
        """
        pins = self.of(file, name)
        pins = [pin for pin in pins if pin.is_lock] or pins
        if not pins:
            return Releases()
        highs = [pin.high for pin in pins if pin.high is not None]
        high = None
        if len(highs) == len(pins):
            high = max(highs)
        first = pins[0]
        said = f"{first.text} of {first.path.name}:{first.line}"
        if len({(pin.low, pin.high) for pin in pins}) > 1:
            said += " and others"
        return Releases(min(pin.low for pin in pins), high, said)

    def of(self, file: Path, name: str) -> list[Pin]:
        """The places in the nearest folder above a file that limit a library."""
        for folder in _folders(file.parent, self._top):
            key = (folder, name)
            if key not in self._known:
                self._known[key] = list(_in_folder(folder, name))
            if self._known[key]:
                return self._known[key]
        return []


def _folders(folder: Path, top: Path | None) -> Iterator[Path]:
    """A folder and those above it, up to the root of the project."""
    above = [folder, *folder.parents]
    roots = [each for each in above if (each / ".git").exists()]
    if not roots and top is not None:
        roots = [each for each in above if each == top]
    roots = roots or [each for each in above if any((each / name).exists() for name in _PROJECT)]
    last = folder
    if roots:
        last = roots[0]
    yield from above[: above.index(last) + 1]


def _in_folder(folder: Path, name: str) -> Iterator[Pin]:
    for path in map(Path, files_in(os.fspath(folder))):
        if kind_of(os.fspath(path)) in (None, "readme") and not _SCRIPT.fullmatch(path.name):
            continue
        try:
            text = path.read_text("utf-8", errors="replace")
        except OSError:
            continue
        yield from pins_in(path, text, name)


def pins_in(path: Path, text: str, name: str) -> Iterator[Pin]:
    """The limits of a library in one file."""
    kind = kind_of(os.fspath(path)) or "script"
    for declared in _declared(kind, text, canonicalize_name(name)):
        low, high = _range(declared)
        if low or high:
            line = text.count("\n", 0, declared.start) + 1
            yield Pin(path, line, declared.shown, low, high, kind == "lock")


def _declared(kind: str, text: str, name: str) -> Iterator[Declared]:
    """Where a file asks for a library; what is read for torch alone in lock files and commands is looked for here."""
    word = re.sub(r"-", "[-_.]+", name)
    if kind == "lock":
        locked = (
            rf"(?im)^name = \"{word}\"\r?\nversion = \"([\w.+!-]+)\""
            rf"|\"{word}\":\s*\{{[^{{}}]*?\"version\":\s*\"==([\w.+!-]+)\""
        )
        for found in re.finditer(locked, text):
            version = found[1] or found[2]
            declared = of_lock(version, found.start(found.lastindex or 0))
            if declared is not None:
                yield replace(declared, name=name, text=f"{name}=={version}")
    elif kind in ("docker", "script"):
        asked = rf"(?im)^(?![ \t]*#).*?(?<![\w./-])({word}(?:\[[\w,-]*\])?[=<>~!]=?[^\s\"';&|\\]+)"
        for found in re.finditer(asked, text):
            declared = of_pip(found[1], found.start(1))
            if declared is not None:
                yield declared
    else:
        for each in read(text, kind).declared:
            if each.name == name:
                yield each


def _range(declared: Declared) -> tuple[Release, Release | None]:
    """The first release that is asked for, and the first one behind them."""
    low: Release = ()
    high: Release | None = None
    for part in declared.versions:
        low = max(low, _first(part))
        last = _behind(part)
        if last is not None:
            if high is None:
                high = last
            else:
                high = min(high, last)
    return low, high


def _numbers(part: Specifier) -> Release:
    found = re.match(r"v?(\d+(?:\.\d+)*)", part.version)
    if found:
        return tuple(map(int, found[1].split(".")))
    return ()


def _first(part: Specifier) -> Release:
    """The first release that a comparison takes."""
    if part.operator in ("<", "<=", "!="):
        return ()
    given = _plain(_numbers(part))
    if part.operator == ">":
        return (*given, 1)
    return given


def _behind(part: Specifier) -> Release | None:
    """The first release behind those that a comparison takes; None where it has no end."""
    given = _numbers(part)
    if not given or part.operator in (">", ">=", "!="):
        return None
    if part.operator == "<":
        return _plain(given)
    if part.operator == "~=":
        return _next(given[:-1])
    if part.version.endswith("*"):
        return _next(given)
    return (*given, 1)


def _next(release: Release) -> Release:
    """The first release behind those that begin with these numbers."""
    if release:
        return (*release[:-1], release[-1] + 1)
    return (1,)


def _plain(release: Release) -> Release:
    """Without zeros at the end: 5 and 5.0 are one release."""
    while len(release) > 1 and release[-1] == 0:
        release = release[:-1]
    return release
