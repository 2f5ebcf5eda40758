"""Jupyter notebooks: the Python cells are one module, in order, and a cell that changes is written back line by line.

A line that begins each cell in the module tells where it is from. Magics are no Python: in the module, `!nvidia-smi` is an
expression with a comment.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

from fsdp_migrate.facts.file import parsed
from fsdp_migrate.findings import Action, Finding, Problem, Severity
from fsdp_migrate.json_places import Place, characters, places, separator

_BEGIN = re.compile(r"^# fsdp-migrate: cell (\d+)\n", re.MULTILINE)
_MASK = "None  # fsdp-migrate: magic "
_MAGIC = re.compile(r"([ \t]*(?:[\w, \t]+=[ \t]*)?)([%!].*|\?.*|[\w.]+\?{1,2}[ \t]*)")
_OF_PYTHON = ("%%time", "%%timeit", "%%capture", "%%prun")  # what follows is Python
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_TO_FILE = ("%%writefile", "%%file")
_APART = ("FSDP001", "fsdp1-import", Action.MANUAL)


@dataclass(frozen=True)
class Cell:
    """A cell of code: its place among all cells, from 1, its `source` and, with magics masked, its Python, if it is that."""

    number: int
    source: str | list[str]
    code: str

    @property
    def lines(self) -> list[str]:
        """Its lines, with their ends."""
        if isinstance(self.source, str):
            return _lines(self.source)
        return self.source


class Notebook:
    """The text of a notebook: `program` is the module, `written` puts one back into it.

    What is no line of a cell that changes keeps every byte, in whatever layout the file is. Raises ValueError for what is no
    JSON.
    """

    def __init__(self, decoded: str) -> None:
        self._decoded = decoded
        self._document = json.loads(decoded)

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells with code, if the notebook's language is Python."""
        if isinstance(self._document, dict):
            whole = self._document
        else:
            whole = {}
        metadata = whole.get("metadata", {})
        named = (
            metadata.get("language_info", {}).get("name"),
            metadata.get("kernelspec", {}).get("language"),
        )
        if any(name not in (None, "python") for name in named):
            return []
        return [
            Cell(number, cell["source"], _code("".join(cell["source"])))
            for number, cell in enumerate(whole.get("cells", ()), 1)
            if cell.get("cell_type") == "code" and cell.get("source")
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
                message = f"cell {cell.number} is not changed, because it is not valid Python"
                found.append(Problem(shown, self._place(cell, 1, 1)[0], message))
        return found

    def apart(self, shown: str) -> Iterator[Finding]:
        """A finding for each cell that mentions FSDP and is written to a file: a program by itself."""
        for cell in self.cells:
            text = "".join(cell.lines)
            if text.startswith(_TO_FILE) and "fsdp" in _COMMENT.sub("", text).lower():
                first = text.partition("\n")[0]
                message = "Not rewritten, because this cell writes a file. Run it, then run fsdp-migrate on that file."
                places = (*self._place(cell, 1, 1), *self._place(cell, 1, len(first) + 1))
                said = f"{message} (cell {cell.number}, line 1)"
                yield Finding(shown, *places, *_APART, said, first.strip(), Severity.RAISES)

    def written(self, program: str) -> str:
        """The file with another module in its cells; raises ValueError where these cannot be told apart any more."""
        first, *parts = _BEGIN.split(program)
        codes = dict(zip(map(int, parts[::2]), parts[1::2], strict=True))
        cells = [cell for cell in self.cells if cell.code]
        if list(codes) != [cell.number for cell in cells]:
            raise ValueError("the cells of the notebook would be mixed up")
        text = self._decoded
        for cell in reversed(cells):  # those behind keep their places
            code = codes[cell.number]
            if _end(cell.code) and code.endswith("\n"):
                code = code[:-1]
            if cell is cells[0]:
                code = first + code
            if code != cell.code:
                lines = _lines(code.replace(_MASK, ""))
                magic = cell.lines[0].partition("\n")[0]
                if magic.startswith("%%") and not (lines and lines[0].startswith(magic)):
                    raise ValueError(f"the magic of cell {cell.number} would not be its first line")
                place = self._source(cell)
                text = text[: place.start] + self._spelled(cell, lines) + text[place.end :]
        return text

    def placed(self, finding: Finding) -> Finding:
        """A finding about the module, at its place in the file."""
        number = 0
        line = 0
        for text in self.program.split("\n")[: finding.line]:
            begun = _BEGIN.fullmatch(text + "\n")
            if begun:
                number = int(begun[1])
                line = 0
            else:
                line += 1
        cell = next(cell for cell in self.cells if cell.number == number)
        start, column = self._place(cell, line, finding.column)
        end, last = self._place(cell, line + finding.end_line - finding.line, finding.end_column)
        message = f"{finding.message} (cell {number}, line {line})"
        return finding._replace(
            line=start, end_line=end, column=column, end_column=last, message=message
        )

    def _place(self, cell: Cell, line: int, column: int) -> tuple[int, int]:
        """The line and the column in the file of a place in a cell."""
        starts = self._characters(cell)
        lines = _lines("".join(cell.lines))
        index = sum(map(len, lines[: max(line, 1) - 1])) + column - 1
        at = starts[min(index, len(starts) - 1)]
        return self._decoded.count("\n", 0, at) + 1, at - self._decoded.rfind("\n", 0, at)

    @cached_property
    def _places(self) -> Place:
        return places(self._decoded)

    def _source(self, cell: Cell) -> Place:
        """Where a cell's source is in the file."""
        return self._places.members["cells"].elements[cell.number - 1].members["source"]

    def _strings(self, cell: Cell) -> list[Place]:
        """Where the strings are that a cell's source consists of."""
        place = self._source(cell)
        if isinstance(cell.source, str):
            return [place]
        return place.elements

    def _characters(self, cell: Cell) -> list[int]:
        """Where each character of a cell begins in the file, and where the last one ends."""
        strings = self._strings(cell)
        starts = [at for place in strings for at in characters(self._decoded, place)]
        return [*starts, strings[-1].end - 1]

    def _spelled(self, cell: Cell, lines: list[str]) -> str:
        """The JSON of a cell's source with other lines; those that stay are spelled as they are."""
        known = self._known(cell)
        spelled: list[str] = []
        matcher = SequenceMatcher(None, cell.lines, lines, autojunk=False)
        for kind, old, last, new, end in matcher.get_opcodes():
            if kind == "equal":
                spelled += known[old:last]
            else:
                spelled += [self._quoted(line) for line in lines[new:end]]
        if isinstance(cell.source, str):
            return f'"{"".join(spelled)}"'
        place = self._source(cell)
        head = self._decoded[place.start : place.elements[0].start]
        foot = self._decoded[place.elements[-1].end : place.end]
        return head + self._between(place).join(f'"{line}"' for line in spelled) + foot

    def _known(self, cell: Cell) -> list[str]:
        """The lines of a cell as the file spells them."""
        if not isinstance(cell.source, str):
            return [self._decoded[each.start + 1 : each.end - 1] for each in self._strings(cell)]
        starts = self._characters(cell)
        known = []
        at = 0
        for line in cell.lines:
            known.append(self._decoded[starts[at] : starts[at + len(line)]])
            at += len(line)
        return known

    def _quoted(self, line: str) -> str:
        """A line as the file spells it: characters that are not ASCII are escaped if all are."""
        return json.dumps(line, ensure_ascii=self._decoded.isascii())[1:-1]

    def _between(self, source: Place) -> str:
        """What separates the lines of a cell."""
        first = source.elements[0]
        if len(source.elements) > 1:
            return separator(self._decoded, first)
        indent = self._decoded[source.start + 1 : first.start]
        if indent:
            return f",{indent}"
        members = self._places.members.values()
        return next(filter(None, (separator(self._decoded, each) for each in members)), ", ")


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


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
    lines = []
    goes_on = False
    for line in text.split("\n"):
        magic = _MAGIC.fullmatch(line)
        masked = line
        if goes_on:
            masked = _MASK + line
        if magic and not goes_on:
            masked = f"{magic[1]}{_MASK}{magic[2]}"
        goes_on = masked != line and line.endswith("\\")
        lines.append(masked)
    return "\n".join(lines)


def _end(code: str) -> str:
    if code.endswith("\n"):
        return ""
    return "\n"
