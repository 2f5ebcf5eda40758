"""Which releases of a library a project takes, as its requirements, its own description or its lock file say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Release = tuple[int, ...]

# Where a project says what it needs, and where a tool has written down what it took.
_FILES = (
    "*requirements*.txt",
    "requirements/*.txt",
    "constraints*.txt",
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "environment*.y*ml",
    "conda*.y*ml",
    "Pipfile",
    "*Dockerfile*",
    "*install*.sh",
    "setup*.sh",
)
_LOCKS = ("uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock")
_PROJECT = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")
_LIMIT = r"(?:===?|~=|!=|>=|<=|<|>|=)\s*v?[\w.*+!-]+"
_POETRY = r"[\^~]?\s*v?[\d.*]+|\*"
_ONE = re.compile(r"\s*(===?|~=|!=|>=|<=|<|>|=|\^|~)?\s*v?(\d+(?:\.\d+)*)(\.\*)?")


@dataclass(frozen=True)
class Pin:
    """One place that limits the releases of a library.

    Attributes:
        start, end: where the limit stands in the text of the file.
        low: the first release that it takes; empty if it names none.
        high: the first one behind those that it takes; None if it names none.
        is_lock: whether a tool wrote it down.
    """

    path: Path
    line: int
    start: int
    end: int
    limit: str
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
    """The limits around the files of one run; each folder is read once."""

    def __init__(self) -> None:
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
        high = max(highs) if len(highs) == len(pins) else None
        first = pins[0]
        said = f"{name}{first.limit} of {first.path.name}:{first.line}"
        if len({(pin.low, pin.high) for pin in pins}) > 1:
            said += " and others"
        return Releases(min(pin.low for pin in pins), high, said)

    def of(self, file: Path, name: str) -> list[Pin]:
        """The places in the nearest folder above a file that limit a library."""
        for folder in _folders(file.parent):
            key = (folder, name)
            if key not in self._known:
                self._known[key] = list(_in_folder(folder, name))
            if self._known[key]:
                return self._known[key]
        return []


def _folders(folder: Path) -> Iterator[Path]:
    """A folder and those above it, up to the root of the project."""
    above = [folder, *folder.parents]
    roots = [each for each in above if (each / ".git").exists()]
    roots = roots or [each for each in above if any((each / name).exists() for name in _PROJECT)]
    last = roots[0] if roots else folder
    yield from above[: above.index(last) + 1]


def _in_folder(folder: Path, name: str) -> Iterator[Pin]:
    for pattern in (*_LOCKS, *_FILES):
        for path in sorted(folder.glob(pattern)):
            try:
                text = path.read_text("utf-8", errors="replace")
            except OSError:
                continue
            yield from pins_in(path, text, name)


def pins_in(path: Path, text: str, name: str) -> Iterator[Pin]:
    """The limits of a library in one file."""
    is_lock = path.name in _LOCKS
    for found in _pattern(name, is_lock).finditer(text):
        limit = next((each for each in found.groups() if each is not None), "")
        before = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
        if not limit or before.lstrip().startswith(("#", "//")):
            continue
        limit = f"=={limit}" if is_lock and limit[0].isdigit() else limit
        low, high = _range(limit)
        if low or high:
            start, end = found.span(found.lastindex or 0)
            line = text.count("\n", 0, start) + 1
            yield Pin(path, line, start, end, limit.replace(" ", ""), low, high, is_lock)


def _pattern(name: str, is_lock: bool) -> re.Pattern[str]:
    """How a file names a library with a limit: `torch` is `torch`, `flash-attn` is `flash_attn`, too."""
    word = re.sub(r"[-_.]+", "[-_.]+", re.escape(name).replace("\\-", "-"))
    if is_lock:
        return re.compile(
            rf"(?im)^name = \"{word}\"\r?\nversion = \"([\w.+!-]+)\""
            rf"|\"{word}\":\s*\{{[^{{}}]*?\"version\":\s*\"==([\w.+!-]+)\""
        )
    return re.compile(
        rf"(?i)(?<![\w./-]){word}(?:\[[\w\s,.-]*\])?[ \t]*\(?({_LIMIT}(?:[ \t]*,[ \t]*{_LIMIT})*)"
        rf"|(?im:^{word}[ \t]*=[ \t]*(?:\{{[^}}\n]*?version[ \t]*=[ \t]*)?"
        rf"[\"']((?:{_POETRY}|{_LIMIT})(?:[ \t]*,[ \t]*{_LIMIT})*))"
    )


def _range(limit: str) -> tuple[Release, Release | None]:
    """The first release of a limit, and the first one behind it."""
    low: Release = ()
    high: Release | None = None
    for part in limit.split(","):
        found = _ONE.match(part)
        if found is None or found[1] == "!=":
            continue
        given = tuple(map(int, found[2].split(".")))
        sign = "=" if found[3] else found[1] or "=="  # conda's `=4.57` is `==4.57.*`
        low = max(low, _first(sign, given))
        last = _behind(sign, given)
        if last is not None:
            high = last if high is None else min(high, last)
    return low, high


def _first(sign: str, given: Release) -> Release:
    """The first release that a comparison takes."""
    if sign in ("<", "<="):
        return ()
    return (*_plain(given), 1) if sign == ">" else _plain(given)


def _behind(sign: str, given: Release) -> Release | None:
    """The first release behind those that a comparison takes; None where it has no end."""
    if sign in (">", ">="):
        return None
    if sign == "<":
        return _plain(given)
    if sign in ("==", "===", "<="):
        return (*given, 1)
    if sign == "^":  # the first number that is not 0 stays
        kept = next((n for n, number in enumerate(given) if number), len(given) - 1)
        return _next(given[: kept + 1])
    if sign == "~=":
        return _next(given[:-1])
    return _next(given[:2]) if sign == "~" else _next(given)


def _next(release: Release) -> Release:
    """The first release behind those that begin with these numbers."""
    return (*release[:-1], release[-1] + 1) if release else (1,)


def _plain(release: Release) -> Release:
    """Without zeros at the end: 5 and 5.0 are one release."""
    while len(release) > 1 and release[-1] == 0:
        release = release[:-1]
    return release
