"""What the migration left to people: the findings by the place that they are on, for failures and for what differs."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from fsdp_migrate.facts.file import place_of
from fsdp_migrate.findings import Finding

_NAME = re.compile(r"[A-Za-z_]\w{3,}")
Frame = tuple[str, int]
"""A file of the program, relative to its folder, and a line of it."""


class Left:
    """Findings in a program before its migration that a person must look at.

    Args:
        root: the folder of the program.
        find: finds them when they are first asked for, with paths relative to `root`.
        origins: for the lines of each file that was migrated in a copy, the lines that they come from.
    """

    def __init__(
        self,
        root: Path,
        find: Callable[[], Sequence[Finding]] = tuple,
        origins: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        self.root = root
        self._find = find
        self._origins = origins

    def place(self, migrated: str) -> str:
        """The place in the user's file of a `file:line` of a migrated copy."""
        name, _, line = migrated.rpartition(":")
        numbers = self._origins.get(name, ())
        if int(line) > len(numbers):
            return migrated
        return f"{name}:{numbers[int(line) - 1]}"

    @property
    def changed(self) -> list[str]:
        """The files that were migrated in a copy."""
        return [*self._origins]

    @cached_property
    def findings(self) -> Sequence[Finding]:
        """All of them, in the order of the report."""
        return self._find()

    def at(self, path: Path, node: ast.AST) -> list[Finding]:
        """The findings on an expression of a file of the program."""
        first, _, last, _ = place_of(node)
        name = path.relative_to(self.root).as_posix()
        return self._on_lines(name, first, last)

    def about(self, pattern: str) -> list[Finding]:
        """The findings whose construct matches."""
        return [finding for finding in self.findings if re.search(pattern, finding.construct)]

    def behind(self, migrated: Path, frames: Sequence[Frame]) -> list[Finding]:
        """The findings that a failure of the migrated program comes from, in the folder `migrated`.

        They are on a line of the traceback or, where none is, on a construct that such a line names, the innermost first.

        Args:
            frames: those of the traceback that are the program's, the outermost first.
        """
        for name, line in reversed(frames):
            if found := self._on_lines(name, *self._before(migrated, name, line)):
                return found
        for name, line in reversed(frames):
            text = _lines(migrated / name)[line - 1 : line]
            if text:
                words = set(_NAME.findall(text[0]))
            else:
                words = set()
            own = [found for found in self.findings if words & _last_name(found.construct)]
            if found := [finding for finding in own if finding.path == name] or own:
                return found[:1]
        return []

    def text(self, finding: Finding) -> str:
        """A finding in one line."""
        return f"{finding.code} at {finding.path}:{finding.line} `{finding.construct}`: {finding.message}"

    def _on_lines(self, name: str, first: int, last: int) -> list[Finding]:
        return [
            finding
            for finding in self.findings
            if finding.path == name and finding.line <= last and first <= finding.end_line
        ]

    def _before(self, migrated: Path, name: str, line: int) -> tuple[int, int]:
        """The first and last line of the original that a line of the migrated file has come from."""
        matcher = difflib.SequenceMatcher(
            None, _lines(self.root / name), _lines(migrated / name), autojunk=False
        )
        for _, start, stop, begin, end in matcher.get_opcodes():
            if not begin < line <= end:
                continue
            if stop - start == end - begin:
                place = start + line - begin
                return place, place
            return start + 1, stop
        return line, line


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _last_name(construct: str) -> set[str]:
    """The last name of a construct, as in `optimizer.load_state_dict(...)`."""
    return set(_NAME.findall(construct.partition("(")[0])[-1:])
