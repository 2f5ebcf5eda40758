"""From positions in the facts (`ast`) to the LibCST nodes that edits are made on."""

from __future__ import annotations

import ast
import re
from typing import TypeVar

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from fsdp_migrate.index.module import Module

Node = TypeVar("Node", bound=cst.CSTNode)
Point = tuple[int, int]  # line from 1, column from 0 in characters

_FILLING = re.compile(r"[\s()]+")


class Refused(Exception):
    """A file cannot be edited without losing something; the message says what."""


class SyntaxTree:
    """The LibCST tree of one file, with its nodes by position.

    Raises:
        libcst.ParserSyntaxError: if LibCST cannot parse what `ast` could.
        Refused: if LibCST would not write back what it read: its positions would be those of another text.
    """

    def __init__(self, source: Module) -> None:
        self.source = source
        # Where a lone CR ends every line, LibCST would lose the last one: it gets LF, and `text` gives CR back.
        self._newline = "\r" if "\r" in source.text and "\n" not in source.text else "\n"
        text = source.text.replace(self._newline, "\n")
        self.module = cst.parse_module(text)
        if self.module.code != text:
            raise Refused(_lost_line(text, self.module.code))
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self._starting: dict[Point, list[tuple[Point, cst.CSTNode]]] = {}
        wrapper = MetadataWrapper(
            self.module, unsafe_skip_copy=True
        )  # the parser's own tree: no node twice
        for node, place in wrapper.resolve(PositionProvider).items():
            start, end = (place.start.line, place.start.column), (place.end.line, place.end.column)
            self._starting.setdefault(start, []).append((end, node))
        self._link()

    def _link(self) -> None:
        stack: list[cst.CSTNode] = [self.module]
        while stack:
            node = stack.pop()
            for child in node.children:
                self.parents[child] = node
                stack.append(child)

    def find(self, node: ast.expr | ast.alias, kind: type[Node]) -> Node:
        """The LibCST node of the given class at the very place of an `ast` expression.

        Raises:
            LookupError: if there is none.
        """
        start = (node.lineno, self.source.column(node.lineno, node.col_offset))
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        end = (node.end_lineno, self.source.column(node.end_lineno, node.end_col_offset))
        for candidate_end, candidate in self._starting.get(start, ()):
            if candidate_end == end and isinstance(candidate, kind):
                if _squeezed(self._own(candidate)) == _squeezed(self.source.source(node)):
                    return candidate
        raise LookupError(f"no {kind.__name__} at line {start[0]}, column {start[1] + 1}")

    def statement(self, node: ast.stmt) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
        """The line or block of a statement.

        Raises:
            LookupError: if it shares its line with others (`a; b`, `if x: statement`), or is an `elif`.
        """
        start = (node.lineno, self.source.column(node.lineno, node.col_offset))
        for _, candidate in self._starting.get(start, ()):
            if not isinstance(self.parents.get(candidate), cst.IndentedBlock | cst.Module):
                continue
            if isinstance(candidate, cst.BaseCompoundStatement):
                return candidate
            if isinstance(candidate, cst.SimpleStatementLine) and len(candidate.body) == 1:
                return candidate
        raise LookupError(f"no statement of its own at line {node.lineno}")

    def line(self, node: ast.stmt) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
        """What stands on the lines of a statement as a whole: the statement, `a; b` of a `b`, or the `if` of an `elif`.

        Raises:
            LookupError: if there is none.
        """
        start = (node.lineno, self.source.column(node.lineno, node.col_offset))
        for _, found in self._starting.get(start, ()):
            around: cst.CSTNode | None = found
            while around is not None:
                whole = isinstance(around, cst.SimpleStatementLine | cst.BaseCompoundStatement)
                if whole and isinstance(self.parents.get(around), cst.IndentedBlock | cst.Module):
                    assert isinstance(around, cst.SimpleStatementLine | cst.BaseCompoundStatement)
                    return around
                around = self.parents.get(around)
        raise LookupError(f"no statement at line {node.lineno}")

    def import_at(
        self, node: ast.Import | ast.ImportFrom
    ) -> tuple[cst.SimpleStatementLine | cst.SimpleStatementSuite, int]:
        """The line or one-line block that holds an import statement, and the statement's place in it.

        Raises:
            LookupError: if there is none.
        """
        start = (node.lineno, self.source.column(node.lineno, node.col_offset))
        for _, candidate in self._starting.get(start, ()):
            if isinstance(candidate, cst.Import | cst.ImportFrom):
                line = self.parents[candidate]
                if isinstance(line, cst.SimpleStatementLine | cst.SimpleStatementSuite):
                    return line, line.body.index(candidate)
        raise LookupError(f"no import at line {node.lineno}")

    def code(self, node: cst.CSTNode) -> str:
        """The source of a node as it stands in the file."""
        return self.module.code_for_node(node)

    def _own(self, node: cst.CSTNode) -> str:
        """The source of a node without the parentheses around it and the comma behind it."""
        if isinstance(node, cst.BaseExpression):
            return self.code(node.with_changes(lpar=(), rpar=()))
        if isinstance(node, cst.ImportAlias):
            return self.code(node.with_changes(comma=cst.MaybeSentinel.DEFAULT))
        return self.code(node)

    def text(self, module: cst.Module) -> str:
        """The source of an edited tree, with the file's own line endings."""
        return module.code.replace("\n", self._newline)


def _lost_line(text: str, written: str) -> str:
    """Which line of a text LibCST does not keep."""
    pairs = zip(text.split("\n"), [*written.split("\n"), None], strict=False)
    line = next((n for n, (one, other) in enumerate(pairs, start=1) if one != other), 1)
    return (
        f"line {line} cannot be kept as it is: a form feed in front of code, a `\\` on a line of its own, "
        "or line endings of several kinds"
    )


def _squeezed(code: str) -> str:
    """Code without whitespace, and without parentheses: `ast` and LibCST differ in whose they are."""
    return _FILLING.sub("", code)
