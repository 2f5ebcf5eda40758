"""Expressions of the user's in generated code: each keeps its own lines unless one line has room for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fsdp_migrate.facts.file import NEWLINE

# Their line ends are all between brackets of their own.
_CLOSED = (ast.Call, ast.Subscript, ast.Dict, ast.List, ast.Set, ast.Tuple, ast.ListComp)
_OPENS = ("(", "[", "{")


@dataclass(frozen=True)
class Kept:
    """An expression over several lines, which new code has as the file has it.

    Attributes:
        name: what stands for it while the code is laid out: no line has room for it.
        lines: its lines as they are in the file.
        column: where the first one begins there.
        indentation: the white space at the beginning of that line.
    """

    name: str
    lines: tuple[str, ...]
    column: int
    indentation: str

    def put_in(self, code: str) -> str:
        """Laid out code with the expression's own lines in the place of its name."""
        place = code.find(self.name)
        start = code.rfind("\n", 0, place) + 1
        margin = re.match(r"[ \t]*", code[start:])
        new = ""
        if margin is not None:
            new = margin[0]
        moved = [self._moved(line, new, place - start) for line in self.lines[1:]]
        return code.replace(self.name, "\n".join([self.lines[0], *moved]), 1)

    def _moved(self, line: str, indentation: str, column: int) -> str:
        """A line below the first one: it keeps its distance from that one's margin, or from what it is aligned with."""
        bare = line.lstrip(" \t")
        lead = line[: len(line) - len(bare)]
        if not bare:
            return ""
        is_hanging = self.lines[0].partition("#")[0].rstrip().endswith(_OPENS)
        if is_hanging and lead.startswith(self.indentation):
            return indentation + lead.removeprefix(self.indentation) + bare
        if "\t" in lead + indentation:
            return line
        return " " * max(0, len(lead) + column - self.column) + bare


def kept(text: str, code: str, width: int, lay_out: Callable[[str], str]) -> tuple[str, list[Kept]]:
    """Generated code with names for the expressions that keep their lines, and these.

    Args:
        text: the file that they are from.
        width: the width of the lines of the code.
        lay_out: lays code out as black does.
    """
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return code, []
    text = NEWLINE.sub("\n", text)
    shown: dict[ast.expr, str] = {
        node: source
        for node in ast.walk(tree)
        if isinstance(node, _CLOSED) and node.lineno != node.end_lineno
        if (source := ast.get_source_segment(code, node)) is not None
        if source in text and _is_closed(source)
    }
    if not shown:
        return code, []
    found: list[Kept] = []
    lines = [line.encode() for line in code.split("\n")]
    for node, other in reversed([*_outermost(tree, ast.parse(lay_out(code)), shown)]):
        source = shown[node]
        if other.lineno == other.end_lineno:
            continue
        place = text.find(source)
        start = text.rfind("\n", 0, place) + 1
        before = text[start:place]
        margin = before[: len(before) - len(before.lstrip(" \t"))]
        name = f"kept_{len(found)}_".ljust(width + 1, "x")
        rows = tuple(source.split("\n"))
        found.append(Kept(name, rows, place - start, margin))
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        first = node.lineno - 1
        last = node.end_lineno - 1
        line = lines[first][: node.col_offset] + name.encode() + lines[last][node.end_col_offset :]
        lines[first : last + 1] = [line]
    return b"\n".join(lines).decode(), found


def _outermost(
    node: ast.AST, other: ast.AST, among: dict[ast.expr, str]
) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The outermost nodes among some, in the order of the code, each with the same node of a tree that is laid out."""
    if isinstance(node, ast.expr) and node in among:
        assert isinstance(other, ast.expr)
        yield node, other
        return
    both = zip(ast.iter_child_nodes(node), ast.iter_child_nodes(other), strict=True)
    for child, its in both:
        yield from _outermost(child, its, among)


def _is_closed(source: str) -> bool:
    """Whether an expression over several lines is one by itself, without text whose lines must stay."""
    if '"""' in source or "'''" in source or "\\\n" in source:
        return False
    try:
        ast.parse(source, mode="eval")
    except SyntaxError:
        return False
    return True
