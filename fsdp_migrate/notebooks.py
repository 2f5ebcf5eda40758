"""Jupyter notebooks: the Python cells are one module, in order, and a cell that changes is written back line by line.

A line that begins each cell in the module tells where it is from. Magics are no Python: in the module, `!nvidia-smi` is an
expression with a comment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from fsdp_migrate.facts.file import parsed
from fsdp_migrate.findings import Action, Finding, Problem

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
_TOKEN = re.compile(r"\\u[0-9a-fA-F]{4}|\\.|.")
_BEGIN = re.compile(r"^# fsdp-migrate: cell (\d+)\n", re.MULTILINE)
_MASK = "None  # fsdp-migrate: magic "
_MAGIC = re.compile(r"([ \t]*(?:[\w, \t]+=[ \t]*)?)([%!].*|\?.*|[\w.]+\?{1,2}[ \t]*)")
_OF_PYTHON = ("%%time", "%%timeit", "%%capture", "%%prun")  # what follows is Python
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_TO_FILE = ("%%writefile", "%%file")
_APART = ("FSDP001", "fsdp1-import", Action.MANUAL)


@dataclass(frozen=True)
class Cell:
    """A cell with Python code.

    Attributes:
        number: its place among all cells, from 1.
        start, end: where its `source` is in the text of the file.
        raw: the lines as they are written there, with quotes and escapes, and where each begins.
        code: its code, magics masked; empty if it is no Python.
    """

    number: int
    start: int
    end: int
    raw: list[tuple[str, int]]
    code: str

    @property
    def lines(self) -> list[str]:
        """Its lines, with their ends."""
        return [json.loads(raw) for raw, _ in self.raw]


@dataclass(frozen=True)
class Notebook:
    """The text of a notebook: `program` is the module, `written` puts one back into it."""

    decoded: str

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells with code, if the notebook's language is Python."""
        whole = {key: (start, value) for key, start, _, value in _parts(self.decoded, 0)}
        _, metadata = whole.get("metadata", (0, {}))
        named = (
            metadata.get("language_info", {}).get("name"),
            metadata.get("kernelspec", {}).get("language"),
        )
        if "cells" not in whole or any(name not in (None, "python") for name in named):
            return []
        cells = _parts(self.decoded, whole["cells"][0])
        return [
            _cell(self.decoded, int(number) + 1, start)
            for number, start, _, value in cells
            if value.get("cell_type") == "code" and value.get("source")
        ]

    @cached_property
    def program(self) -> str:
        """All cells that are Python, one below another."""
        return "".join(
            f"# fsdp-migrate: cell {cell.number}\n{cell.code}{_end(cell.code)}"
            for cell in self.cells
            if cell.code
        )

    def problems(self, shown: str) -> list[Problem]:
        """The cells that mention FSDP and do not parse; other languages are passed over."""
        found = []
        for cell in self.cells:
            text = "".join(cell.lines)
            other = text.startswith("%%") and not text.startswith(_OF_PYTHON)
            if not cell.code and not other and "fsdp" in text.lower():
                message = f"cell {cell.number} is left alone: it is no Python that parses"
                found.append(Problem(shown, self._line(cell.start), message))
        return found

    def apart(self, shown: str) -> Iterator[Finding]:
        """A finding for each cell that mentions FSDP and is written to a file: a program by itself."""
        for cell in self.cells:
            text = "".join(cell.lines)
            if text.startswith(_TO_FILE) and "fsdp" in _COMMENT.sub("", text).lower():
                first, (raw, start) = text.partition("\n")[0].strip(), cell.raw[0]
                message = (
                    "stays on FSDP1: run the cell, and fsdp-migrate on the file that it writes"
                )
                line, at = self._line(start), start - self.decoded.rfind("\n", 0, start)
                place = (shown, line, at, line, at + len(raw))
                yield Finding(*place, *_APART, f"{message} (cell {cell.number}, line 1)", first)

    def written(self, program: str) -> str:
        """The file with another module in its cells; raises ValueError where these cannot be told apart any more."""
        first, *parts = _BEGIN.split(program)
        codes = dict(zip(map(int, parts[::2]), parts[1::2], strict=True))
        cells = [cell for cell in self.cells if cell.code]
        if list(codes) != [cell.number for cell in cells]:
            raise ValueError("the cells of the notebook would be mixed up")
        text = self.decoded
        for cell in reversed(cells):
            code = codes[cell.number]
            code = code[:-1] if _end(cell.code) and code.endswith("\n") else code
            code = first + code if cell is cells[0] else code
            if code != cell.code:
                lines = re.findall(r"[^\n]*\n|[^\n]+", code.replace(_MASK, ""))
                magic = cell.lines[0].partition("\n")[0]
                if magic.startswith("%%") and not (lines and lines[0].startswith(magic)):
                    raise ValueError(f"the magic of cell {cell.number} would not be its first line")
                text = text[: cell.start] + _written(text, cell, lines) + text[cell.end :]
        return text

    def placed(self, finding: Finding) -> Finding:
        """A finding about the module, at its place in the file."""
        number, line = 0, 0
        for text in self.program.split("\n")[: finding.line]:
            begun = _BEGIN.fullmatch(text + "\n")
            number, line = (int(begun[1]), 0) if begun else (number, line + 1)
        cell = next(cell for cell in self.cells if cell.number == number)
        raw, start = cell.raw[max(min(line, len(cell.raw)), 1) - 1]
        signs = [0, *accumulate(map(len, _TOKEN.findall(raw[1:-1])))]
        before = start - (self.decoded.rfind("\n", 0, start) + 1) + 2
        first, last = (
            before + signs[min(column - 1, len(signs) - 1)]
            for column in (finding.column, finding.end_column)
        )
        lines = finding.end_line - finding.line if len(cell.raw) > 1 else 0
        at = self._line(start)
        message = f"{finding.message} (cell {number}, line {line})"
        return finding._replace(
            line=at, end_line=at + lines, column=first, end_column=last, message=message
        )

    def _line(self, at: int) -> int:
        return self.decoded.count("\n", 0, at) + 1


def _parts(text: str, start: int) -> Iterator[tuple[str | int, int, int, Any]]:
    """The members of the object, or the elements of the list, that begins at a place: key, start, end, value."""
    key: str | int = -1
    at = _after_space(text, start + 1)
    while text[at] not in "]}":
        if text[start] == "{":
            key, colon = _DECODER.raw_decode(text, at)
            at = _after_space(text, _after_space(text, colon) + 1)
        else:
            key = int(key) + 1
        value, end = _DECODER.raw_decode(text, at)
        yield key, at, end, value
        at = _after_space(text, end)
        at = _after_space(text, at + 1) if text[at] == "," else at


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _cell(text: str, number: int, at: int) -> Cell:
    start, end = next((start, end) for key, start, end, _ in _parts(text, at) if key == "source")
    spans = [(start, end)]
    if text[start] == "[":
        spans = [(first, last) for _, first, last, _ in _parts(text, start)]
    raw = [(text[first:last], first) for first, last in spans]
    return Cell(number, start, end, raw, _code("".join(json.loads(each) for each, _ in raw)))


def _code(text: str) -> str:
    """The code of a cell with its magics masked; nothing if that is no Python."""
    if text.startswith("%%") and not text.startswith(_OF_PYTHON):
        return ""
    for code in (text, _masked(text)):
        try:
            parsed(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return code
    return ""


def _masked(text: str) -> str:
    lines, goes_on = [], False
    for line in text.split("\n"):
        magic = _MAGIC.fullmatch(line)
        masked = _MASK + line if goes_on else line
        if magic and not goes_on:
            masked = f"{magic[1]}{_MASK}{magic[2]}"
        goes_on = masked != line and line.endswith("\\")
        lines.append(masked)
    return "\n".join(lines)


def _end(code: str) -> str:
    return "" if code.endswith("\n") else "\n"


def _written(text: str, cell: Cell, lines: list[str]) -> str:
    """The `source` of a cell with other lines: those that it had are written as they were."""
    known = {json.loads(raw): raw for raw, _ in cell.raw}
    escaped = text.isascii()
    if text[cell.start] != "[":
        return json.dumps("".join(lines), ensure_ascii=escaped)
    raws = [known.get(line) or json.dumps(line, ensure_ascii=escaped) for line in lines]
    (first, start), (last, end) = cell.raw[0], cell.raw[-1]
    before, after = text[cell.start + 1 : start], text[end + len(last) : cell.end - 1]
    second = cell.raw[1][1] if len(cell.raw) > 1 else 0
    between = text[start + len(first) : second] or "," + (before or " ")
    return f"[{before}{between.join(raws)}{after}]"
