"""What the migration left to people: the findings by the place that they are on, for failures and for printed lines."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fsdp_migrate.findings import Finding

_CONTEXT = 2
"""Names in a construct that are shorter say nothing."""


@dataclass(frozen=True)
class Left:
    """Findings in a program before its migration.

    Attributes:
        root: the folder of the program.
        findings: those that a person must look at, with paths relative to `root`.
    """

    root: Path
    findings: Sequence[Finding] = field(default=())

    def at(self, path: Path, node: ast.AST) -> list[Finding]:
        """The findings on an expression of a file of the program."""
        first = getattr(node, "lineno", 0)
        return self.on_lines(self._name(path), first, getattr(node, "end_lineno", None) or first)

    def on_lines(self, name: str, first: int, last: int) -> list[Finding]:
        """The findings on lines of a file, by its path relative to the program's folder."""
        return [
            finding
            for finding in self.findings
            if finding.path == name and finding.line <= last and first <= finding.end_line
        ]

    def behind(self, migrated: Path, frames: Sequence[tuple[str, int]]) -> list[Finding]:
        """The findings that a failure of the migrated program comes from, in the folder `migrated`.

        Args:
            frames: the file and the line of each frame of a traceback that is the program's, the outermost first.
        """
        for name, line in reversed(frames):
            first, last = self._before(migrated / name, name, line)
            if found := self.on_lines(name, first, last):
                return found
        return []

    def text(self, finding: Finding) -> str:
        """A finding in one line."""
        return f"{finding.code} at {finding.path}:{finding.line} `{finding.construct}`: {finding.message}"

    def _name(self, path: Path) -> str:
        return (
            path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)
        )

    def _before(self, migrated: Path, name: str, line: int) -> tuple[int, int]:
        """The lines of the original that a line of the migrated file has come from."""
        try:
            old = (self.root / name).read_text(encoding="utf-8", errors="replace").splitlines()
            new = migrated.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return line, line
        for _, start, stop, begin, end in difflib.SequenceMatcher(
            None, old, new, False
        ).get_opcodes():
            if begin < line <= end:
                same = stop - start == end - begin
                place = start + line - begin
                return (place, place) if same else (start + 1, stop)
        return line, line
