"""What a line of the program reads, and what it may change, by its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.facts.file import place_of

_PRINTS = re.compile(r"print|log|info|debug|warn|write|barrier|display|format", re.IGNORECASE)
"""Calls of such names tell something, and train nothing."""
_COLLECTS = re.compile(r"^(all_)?(reduce|gather)(_|$)")
"""Calls of such names give the ranks the same value."""
_ACTS = re.compile(r"\w_$|clip|step|load|update|^set|apply|backward|copy|train")
"""Calls of such names change something, also where their value is used."""


@dataclass(frozen=True)
class Statement:
    """A statement, of a compound one its head.

    Attributes:
        reads: the names and attributes that it reads, as `self.rate`.
        targets: the variables of its loops.
        loops: whether it is the head of a loop, or has one in it.
        decides: whether it chooses, by a value, which line is the next.
        body: the first and the last line of a loop that is a statement.
        acts: whether it changes what is not a variable: it calls something for its effect, or stores in an object.
        blocks: the first lines of the blocks of an `if`.
        adds_to: the variable that it adds to, as in `total += x`; empty for anything else.
        collects: whether it calls a collective, after which the ranks have the same.
    """

    reads: frozenset[str] = frozenset()
    targets: frozenset[str] = frozenset()
    loops: bool = False
    decides: bool = False
    body: tuple[int, int] | None = None
    acts: bool = False
    blocks: frozenset[int] = frozenset()
    adds_to: str = ""
    collects: bool = False


class Statements:
    """The statements of one file, by line."""

    def __init__(self, text: str) -> None:
        self._spans: list[tuple[int, int, ast.stmt]] = []
        self._known: dict[int, Statement] = {}
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt):
                self._spans.append((node.lineno, _head_end(node), node))

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The first and last line of each statement, of a compound one of its head."""
        return [(first, last) for first, last, _ in self._spans]

    def at(self, line: int) -> Statement:
        """The innermost statement with this line."""
        if line not in self._known:
            spans = [span for span in self._spans if span[0] <= line <= span[1]]
            inner = min(spans, key=lambda span: span[1] - span[0], default=None)
            if inner is not None:
                self._known[line] = _statement(inner[2])
            else:
                self._known[line] = Statement()
        return self._known[line]

    def loop(self, *lines: int) -> int:
        """The line of the innermost `for` with all these lines in it; 0 if there is none."""
        heads = [
            node.lineno
            for _, _, node in self._spans
            if isinstance(node, ast.For)
            and all(node.lineno <= line <= (node.end_lineno or 0) for line in lines)
        ]
        return max(heads, default=0)


def _head_end(node: ast.stmt) -> int:
    """The last line of a statement, or of what comes before its block."""
    first: ast.AST | None = None
    for name, value in ast.iter_fields(node):
        if name == "body":
            first = value[0]
        elif name == "cases":
            first = value[0].pattern
    if first is None:
        return node.end_lineno or node.lineno
    return max(node.lineno, place_of(first)[0] - 1)


def _statement(node: ast.stmt) -> Statement:
    parts = [*_own_parts(node)]
    loops = [part for part in parts if isinstance(part, ast.comprehension)]
    targets = [loop.target for loop in loops]
    if isinstance(node, (ast.For, ast.AsyncFor)):
        targets.append(node.target)
    names = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    stores = any(
        isinstance(part, (ast.Attribute, ast.Subscript)) and not isinstance(part.ctx, ast.Load)
        for part in parts
    )
    bases = {id(part.value) for part in parts if isinstance(part, ast.Attribute)}
    span = None
    if isinstance(node, ast.For):
        span = (node.lineno, node.end_lineno or node.lineno)
    reads = set[str]()
    for part in parts:
        if id(part) not in bases:
            reads.update(_read(part))
    blocks = frozenset[int]()
    if isinstance(node, ast.If):
        blocks = frozenset(block[0].lineno for block in (node.body, node.orelse) if block)
    adds_to = ""
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        adds_to = node.target.id
    calls = [_called(part) for part in parts if isinstance(part, ast.Call)]
    return Statement(
        frozenset(reads),
        frozenset(names),
        bool(targets) or isinstance(node, ast.While),
        isinstance(node, (ast.If, ast.While, ast.For, ast.AsyncFor, ast.Match)),
        span,
        stores or _calls_for_effect(node),
        blocks,
        adds_to,
        any(map(_COLLECTS.search, calls)),
    )


def _own_parts(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement, without those of the statements in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield child
            yield from _own_parts(child)


def _read(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute):
        # Of a chain the first two names.
        while isinstance(node.value, ast.Attribute):
            node = node.value
        if isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def _calls_for_effect(node: ast.stmt) -> bool:
    if isinstance(node, (ast.With, ast.AsyncWith, ast.AugAssign, ast.Delete)):
        return True
    calls = [part for part in _own_parts(node) if isinstance(part, ast.Call)]
    if isinstance(node, ast.Expr):
        return any(not _PRINTS.search(_called(call)) for call in calls)
    return any(_ACTS.search(_called(call)) for call in calls)


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return ast.unparse(call.func)
