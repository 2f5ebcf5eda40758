"""The import statements of a file after their changes: each where isort and ruff would have it, in a file that is sorted."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cache
from itertools import pairwise
from pathlib import Path

from fsdp_migrate.codemods.edit.import_statement import (
    Code,
    ImportChange,
    edited,
    new_statements,
)
from fsdp_migrate.codemods.edit.text import (
    comments_between,
    indentation,
    is_alone,
    line_start,
    newline,
)
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import NEWLINE, File
from fsdp_migrate.facts.names import RUNTIME

_FUTURE, _STANDARD, _OTHER, _OWN, _LOCAL = range(5)  # isort's sections, in order
_PROJECT = (".git", "pyproject.toml", "setup.py", "setup.cfg")
_DIRECTIVE = re.compile(
    r"#\s*(noqa|nosec|type:|pyright:|mypy:|pylint:|pyre-|ruff:|isort:|fmt:)", re.I
)
_NOQA = re.compile(r"#\s*noqa", re.I)


@dataclass(frozen=True)
class Line:
    """A statement with its lines.

    Attributes:
        key: its place in a section.
        section: of isort's.
        text: its lines, with the comments above it.
        moves: whether it is new, or comes from another module now.
    """

    key: tuple[object, ...]
    section: int
    text: str
    moves: bool = False


def edit_imports(file: File, changes: Sequence[ImportChange], limit: int) -> list[Edit]:
    """The edits of all import statements of a file.

    Args:
        limit: the line length of the target's formatter.
    """
    changed: dict[ast.stmt, ImportChange] = {change.node: change for change in changes}
    edits: list[Edit] = []
    runs = {id(run[0]): run for node in changed if (run := _run(file, node))}
    for run in runs.values():
        edits += _Run(file, run, changed, limit).edits()
    for change in changes:
        if not _is_import(file, change.node):
            edits += _among_others(file, change, limit)
    return edits


def insert_first(file: File, names: Sequence[tuple[str, str]], limit: int) -> list[Edit]:
    """New imports in a file that has none with lines of its own: below its docstring or its first comments."""
    made: dict[str, list[str]] = {}
    for module, name in names:
        made.setdefault(module, []).append(name)
    codes = sorted(new_statements(made, "", limit), key=lambda code: code.key)
    end = newline(file)
    lines = "".join(f"{code.text}\n" for code in codes).replace("\n", end)
    body = file.tree.body
    above_all = body[:1] if ast.get_docstring(file.tree, clean=False) is not None else []
    above_all = [each for each in above_all if is_alone(file, each)]
    above_all += [each for each in body if getattr(each, "module", "") == "__future__"]
    if above_all:
        at = file.lines(above_all[-1])[1]
        above = "" if file.text[:at].endswith(("\n", "\r")) else end
        return [Edit(at, at, above + end + lines + _blank_before(file, at))]
    head = re.match(r"(?:\ufeff?#[^\r\n]*(?:\r\n|\r|\n))*", file.text)
    at = head.end() if head else 0
    return [Edit(at, at, (end if at else "") + lines + _blank_before(file, at))]


def _blank_before(file: File, at: int) -> str:
    return "" if file.text.startswith(("\n", "\r"), at) or at == len(file.text) else newline(file)


def _run(file: File, node: ast.stmt) -> list[ast.stmt]:
    """The import statements around one, each with lines of its own; empty if it shares its line."""
    if not _is_import(file, node):
        return []
    block = file.block(node)
    first = last = block.index(node)
    while first and _is_import(file, block[first - 1]):
        first -= 1
    while last + 1 < len(block) and _is_import(file, block[last + 1]):
        last += 1
    return block[first : last + 1]


def _is_import(file: File, statement: ast.stmt) -> bool:
    """Whether a statement is an import with lines of its own: behind a backslash the next one is on its line."""
    behind = file.text[file.span(statement)[1] : file.lines(statement)[1]]
    is_import = isinstance(statement, ast.Import | ast.ImportFrom)
    return is_import and is_alone(file, statement) and not behind.rstrip().endswith("\\")


class _Run:
    """Import statements below each other, in blocks that blank lines part."""

    def __init__(
        self, file: File, run: list[ast.stmt], changed: dict[ast.stmt, ImportChange], limit: int
    ) -> None:
        self.file = file
        self.changed = changed
        self.limit = limit
        self.base = indentation(file, run[0])
        self.blocks = self._blocks(run)
        before = [[self._line(node) for node in block] for block in self.blocks]
        self.order = _order_of(before)
        self.apart = self.order is not None and not any(
            len(node.names) > 1 and any(alias.asname for alias in node.names)
            for node in run
            if isinstance(node, ast.ImportFrom)
        )

    def edits(self) -> Iterator[Edit]:
        """The edits of the blocks in which something changes."""
        file, end_of_line = self.file, newline(self.file)
        for block, lines in zip(self.blocks, self._after(), strict=True):
            start, end = self._start(block[0]), file.lines(block[-1])[1]
            whole = [
                line.text if line.text.endswith(("\n", "\r")) else line.text + end_of_line
                for line in lines
            ]
            if whole and not file.text[start:end].endswith(("\n", "\r")):
                whole[-1] = whole[-1].removesuffix(end_of_line)
            alone = len(file.block(block[0])) == len(block)
            if not whole and alone and not isinstance(file.parents[block[0]], ast.Module):
                whole = [f"{self.base}pass{end_of_line}"]
            elif not whole:
                end = _past_blanks(file, start, end)
            if any(node in self.changed for node in block) or any(line.moves for line in lines):
                yield from _difference(file, start, end, "".join(whole))

    def _blocks(self, run: list[ast.stmt]) -> list[list[ast.stmt]]:
        blocks = [[run[0]]]
        for above, node in pairwise(run):
            between = self.file.text[self.file.lines(above)[1] : self.file.lines(node)[0]]
            lines = NEWLINE.split(between)[:-1]
            if all(line.startswith(f"{self.base}#") for line in lines):
                blocks[-1].append(node)
            else:
                blocks.append([node])
        return blocks

    def _start(self, node: ast.stmt) -> int:
        """Where a statement's lines begin: with the comments right above it, if they are not the first of the file."""
        file = self.file
        number = node.lineno - 1
        while number and self._is_comment(number):
            number -= 1
        return file.line_starts[number] if number else file.lines(node)[0]

    def _is_comment(self, number: int) -> bool:
        starts = self.file.line_starts
        line = self.file.text[starts[number - 1] : starts[number]]
        return line.startswith(f"{self.base}#")

    def _line(self, node: ast.stmt) -> Line:
        """A statement as it is."""
        assert isinstance(node, ast.Import | ast.ImportFrom)
        names = tuple(alias.name for alias in node.names)
        code = Code(names[0], ())
        if isinstance(node, ast.ImportFrom):
            code = Code("." * node.level + (node.module or ""), names)
        text = self.file.text[self._start(node) : self.file.lines(node)[1]]
        return Line(code.key, _section(self.file.path, code.module), text)

    def _after(self) -> list[list[Line]]:
        """The statements of each block. In a run that is sorted, what is new goes where its section has it.

        In another run only the standard library's does, to the first statements that begin with such a module.
        """
        sections = [self._line(block[0]).section for block in self.blocks]
        blocks: list[list[Line]] = []
        moved: list[Line] = []
        for block in self.blocks:
            blocks.append([])
            for line in (line for node in block for line in self._changed(node)):
                is_standard = line.section == _STANDARD and _STANDARD in sections
                elsewhere = line.moves and (self.order is not None or is_standard)
                (moved if elsewhere else blocks[-1]).append(line)
        for line in sorted(moved, key=self._key):
            if line.section in sections:
                lines = blocks[sections.index(line.section)]
                place = (i for i, each in enumerate(lines) if self._key(each) > self._key(line))
                lines.insert(next(place, len(lines)), line)
            else:
                below = [i for i, section in enumerate(sections) if section > line.section]
                text = line.text + newline(self.file) if below else newline(self.file) + line.text
                lines = blocks[below[0] if below else -1]
                lines.insert(0 if below else len(lines), replace(line, text=text))
        return blocks

    def _key(self, line: Line) -> tuple[object, ...]:
        return line.section, *(self.order(line) if self.order is not None else ())

    def _changed(self, node: ast.stmt) -> Iterator[Line]:
        """A statement after its change, with those of other modules: above it where they sort there, else behind."""
        file, end = self.file, newline(self.file)
        before = self._line(node)
        if node not in self.changed:
            yield before
            return
        change = self.changed[node]
        begin, last = file.span(node)
        first, stop = file.lines(node)
        lead, prefix = file.text[self._start(node) : first], file.text[first:begin]
        suffix = file.text[last:stop]
        result = edited(file, change, self.base, self.limit, apart=self.apart)
        loose = [*result.loose]
        if "#" not in suffix and (directives := [*filter(_DIRECTIVE.match, loose)]):
            suffix = f"  {directives[0]}{end}"
            loose.remove(directives[0])
        comments = "".join(f"{self.base}{comment}{end}" for comment in loose)
        others = [self._new(code, suffix) for code in result.others]
        if others and result.kept is not None and not change.drop:  # the comments of what moved
            others[0], comments = replace(others[0], text=comments + others[0].text), ""
        if result.kept is None:
            if others:
                ending = suffix if "#" in suffix else end
                text = others[0].text.rstrip("\r\n").removesuffix(ending.rstrip()).rstrip()
                others[0] = replace(others[0], text=lead + comments + text + ending)
            elif lead or comments or "#" in suffix:
                own = f"{self.base}{suffix.lstrip()}" if "#" in suffix else ""
                others = [replace(before, text=lead + comments + own)]
            yield from others
            return
        code, text = result.kept, result.kept.text
        longest = max(map(len, NEWLINE.split(file.text[begin:last])))
        is_long = len(self.base + text) > max(self.limit, longest)
        if is_long and not result.exact and not NEWLINE.search(text):
            comment = suffix.lstrip().rstrip("\r\n")
            text, suffix = code.exploded(self.base, comment).replace("\n", end), end
        text = lead + comments + prefix + text + suffix
        moves = code.key[:2] != before.key[:2]
        line = Line(code.key, _section(file.path, code.module), text, moves)
        above = [o for o in others if o.key < before.key] if not lead + comments else []
        yield from above
        yield line
        yield from (other for other in others if other not in above)

    def _new(self, code: Code, beside: str) -> Line:
        """A new statement; what a linter overlooks beside it (an unused name, its place) is overlooked here too."""
        end = newline(self.file)
        ending = f"  {beside.strip()}" if _NOQA.match(beside.strip()) else ""
        line = self.base + code.text.replace("\n", end) + ending + end
        return Line(code.key, _section(self.file.path, code.module), line, True)


def _order_of(blocks: Sequence[Sequence[Line]]) -> Callable[[Line], tuple[object, ...]] | None:
    """The order in which a run is sorted, as isort and ruff know it; None if it is not."""
    sections = [{line.section for line in block} for block in blocks]
    if any(len(each) > 1 for each in sections):
        return None
    if any(min(above) >= min(below) for above, below in pairwise(sections)):
        return None
    orders: tuple[Callable[[Line], tuple[object, ...]], ...] = (
        lambda line: line.key,
        lambda line: (line.key[1], line.key[0], *line.key[2:]),
    )
    for order in orders:
        if all(sorted(block, key=order) == [*block] for block in blocks if block[0].section < _OWN):
            return order
    return None


def _section(path: Path, module: str) -> int:
    top = module.split(".")[0]
    if top == "__future__":
        return _FUTURE
    if top in sys.stdlib_module_names:
        return _STANDARD
    if not top:
        return _LOCAL
    is_own = top != RUNTIME.split(".")[0] and _is_own(path.absolute().parent, top)
    return _OWN if is_own else _OTHER


@cache
def _is_own(folder: Path, top: str) -> bool:
    """Whether a package is the project's own, as ruff sees it: it is in the project's folder, or in `src` there."""
    above = (folder, *folder.parents)
    root = next((p for p in above if any((p / name).exists() for name in _PROJECT)), folder)
    places = (root, root / "src")
    return any((each / top).is_dir() or (each / f"{top}.py").is_file() for each in places)


def _past_blanks(file: File, start: int, end: int) -> int:
    """The end of the blank lines behind a block that goes, if there is nothing or a blank line above it."""
    above = file.text[:start].rstrip(" \t")
    blanks = re.compile(r"(?:[ \t]*(?:\r\n|\r|\n))*").match(file.text, end)
    opens = above == "" or NEWLINE.split(above)[-2:] == ["", ""] or above.rstrip().endswith(":")
    return blanks.end() if opens and blanks else end


def _difference(file: File, start: int, end: int, after: str) -> Iterator[Edit]:
    """Edits of whole lines that make one text of another."""
    old, new = (
        re.findall(r".*?(?:\r\n|\r|\n)|.+\Z", t, re.S) for t in (file.text[start:end], after)
    )
    starts = [start]
    for line in old:
        starts.append(starts[-1] + len(line))
    for tag, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            yield Edit(starts[a], starts[b], "".join(new[c:d]))


def _among_others(file: File, change: ImportChange, limit: int) -> list[Edit]:
    """A statement that shares its line: statements joined by `;` stay joined, comments go above."""
    start, end = file.span(change.node)
    result = edited(file, change, indentation(file, change.node), limit)
    kept = [] if result.kept is None else [result.kept.on_one_line]
    if result.kept is not None and result.exact:
        kept = [result.kept.text]
    code = "; ".join([*kept, *(other.on_one_line for other in result.others)]) or "pass"
    edits = [Edit(start, end, code)]
    inside = [] if result.exact else comments_between(file, start, end)
    above = line_start(file, change.node)
    return (
        [Edit(above, above, "".join(each + newline(file) for each in inside)), *edits]
        if inside
        else edits
    )
