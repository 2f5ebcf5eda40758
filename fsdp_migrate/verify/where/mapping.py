"""Which line of the original program a line of the migrated one is."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path

from fsdp_migrate.verify.folders import Program
from fsdp_migrate.verify.where.statements import Statements

_ALIKE = 0.75
_LONG = 8
_PAIRS = 900
"""How much two lines are alike at least, how long they are, and how many pairs of a block's lines are looked at."""

_AROUND = 3
"""Lines before and after one that is shown."""


@dataclass(frozen=True)
class File:
    """One file of both programs.

    Attributes:
        text: the original's lines.
        old, new: for lines of the original and of the migrated file the line of the original that stands for them. Lines
            that only one of them has are missing; a block that was rewritten is its first line.
        changed: lines of the original that the migrated file does not have like this.
        rewritten: lines that stand for a block of several.
    """

    text: list[str]
    old: dict[int, int] = field(default_factory=dict)
    new: dict[int, int] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    rewritten: set[int] = field(default_factory=set)

    def source(self, line: int) -> str:
        """A line's text."""
        if 0 < line <= len(self.text):
            return self.text[line - 1].strip()
        return ""

    def around(self, line: int) -> tuple[tuple[int, str], ...]:
        """A line and those next to it, with their numbers."""
        numbers = range(max(line - _AROUND, 1), min(line + _AROUND, len(self.text)) + 1)
        return tuple((number, self.text[number - 1]) for number in numbers)


class Mapping:
    """The files of both programs, by their names in the original."""

    def __init__(self, original: Program, migrated: Program) -> None:
        self._roots = original.root, migrated.root
        scripts = [str(p.script.relative_to(p.root)) for p in (original, migrated)]
        # Two scripts, maybe of one folder: one takes the place of the other.
        self._renamed = {scripts[1]: scripts[0]}
        self._names = {scripts[0]: scripts[1]}
        self._files: dict[str, File | None] = {}

    def name(self, migrated: str) -> str:
        """The original's name of a file of the migrated program."""
        return self._renamed.get(migrated, migrated)

    def file(self, name: str) -> File | None:
        """A file that both programs have; None for any other."""
        if name not in self._files:
            other = self._names.get(name, name)
            texts = [
                _lines(root / path) for root, path in zip(self._roots, (name, other), strict=True)
            ]
            old, new = texts
            if old is None or new is None:
                self._files[name] = None
            else:
                self._files[name] = _mapped(old, new)
        return self._files[name]


def _lines(path: Path) -> list[str] | None:
    if path.is_file():
        return path.read_text("utf-8", errors="replace").splitlines()
    return None


def _mapped(old: list[str], new: list[str]) -> File:
    file = File(old)
    # A block that moves one step in, under a `with` of the migration, stays the same.
    texts = [[line.strip() for line in lines] for lines in (old, new)]
    matcher = difflib.SequenceMatcher(None, texts[0], texts[1], autojunk=False)
    changed: set[int] = set()
    for tag, a, a_end, b, b_end in matcher.get_opcodes():
        if tag in ("equal", "replace"):
            _map_block(file, texts, (a, a_end), (b, b_end))
        if tag != "equal":
            file.changed.update(range(a + 1, a_end + 1))
            changed.update(range(a + 1, max(a_end, a + 1) + 1))
    _join_statements(file, changed)
    return file


def _join_statements(file: File, changed: set[int]) -> None:
    """A statement of several lines that was rewritten anywhere counts as a whole: its parts may run in another order."""
    for first, last in Statements("\n".join(file.text)).spans:
        if first == last or changed.isdisjoint(range(first, last + 1)):
            continue
        lines = range(first, last + 1)
        file.rewritten.add(first)
        for side in (file.old, file.new):
            side.update({line: first for line, old in side.items() if old in lines})


def _map_block(
    file: File, texts: list[list[str]], old: tuple[int, int], new: tuple[int, int]
) -> None:
    """Map lines to lines where there are as many, or where one is much like the other; else a block to a block."""
    (a, a_end), (b, b_end) = old, new
    if a == a_end or b == b_end:
        return
    if a_end - a == b_end - b:
        file.old.update({a + n + 1: a + n + 1 for n in range(a_end - a)})
        file.new.update({b + n + 1: a + n + 1 for n in range(b_end - b)})
        return
    like = _most_alike(texts, old, new)
    if like is not None:
        i, j = like
        _map_block(file, texts, (a, i), (b, j))
        _map_block(file, texts, (i, i + 1), (j, j + 1))
        _map_block(file, texts, (i + 1, a_end), (j + 1, b_end))
        return
    first = next((n for n in range(a, a_end) if texts[0][n]), a) + 1
    file.old.update({n + 1: first for n in range(a, a_end)})
    file.new.update({n + 1: first for n in range(b, b_end)})
    file.rewritten.add(first)


def _most_alike(
    texts: list[list[str]], old: tuple[int, int], new: tuple[int, int]
) -> tuple[int, int] | None:
    """The lines of two blocks that are most alike; None if no two are alike."""
    best = _ALIKE
    like = None
    for i in range(*old):
        for j in range(*new):
            one = texts[0][i]
            other = texts[1][j]
            if min(len(one), len(other)) < _LONG or (new[1] - new[0]) * (old[1] - old[0]) > _PAIRS:
                continue
            ratio = difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()
            if ratio > best:
                best = ratio
                like = (i, j)
    return like
