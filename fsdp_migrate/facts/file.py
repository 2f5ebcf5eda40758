"""One parsed file, walked once into flat tables that every rule queries."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from fsdp_migrate.facts.scopes import (
    OUTSIDE,
    RECORDERS,
    Binder,
    Binding,
    Defined,
    FunctionNode,
    Scope,
    Variable,
    bind_parameters,
    outside,
)

Node = TypeVar("Node", bound=ast.AST)

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Fields that hold words and numbers, and contexts and operators, which are one object for all nodes.
_LEAVES = frozenset(
    {"arg", "asname", "attr", "conversion", "ctx", "id", "is_async", "kind", "kwd_attrs", "level"}
    | {"module", "op", "ops", "rest", "simple", "str", "tag", "type_comment", "type_ignores"}
)
# The other fields of each type of nodes, the last one first, as they are taken from the end of a stack.
_FIELDS = {
    kind: tuple(name for name in reversed(kind._fields) if name not in _LEAVES)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
} | dict.fromkeys((ast.Constant, ast.Global, ast.MatchSingleton, ast.Nonlocal), ())
# Whose scopes are kept: those of other nodes are found from these.
_SCOPED = frozenset(kind for kind in _FIELDS if issubclass(kind, ast.stmt | ast.Name))

# What stands for a dot in the name of a folder; no path and no import has it.
_DOT = "\0"
# What ends a line for Python's tokenizer; `str.splitlines` knows more.
NEWLINE = re.compile(r"\r\n|\r|\n")


class File:
    """One file of a program.

    Args:
        path: where it is.
        shown: the path as findings print it.
        text: its source.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: from `parsed`.
    """

    def __init__(self, path: Path, shown: str, text: str) -> None:
        self.path = path
        self.shown = shown
        self.text = text
        self.tree = parsed(text)
        self.name = module_name(path)
        self.is_package = path.name == "__init__.py"
        self.parents: dict[ast.AST, ast.AST] = {}
        self.scope = Scope(self.tree, None)
        self._scopes: dict[ast.AST, Scope] = {self.tree: self.scope}
        self._scope_of: dict[ast.AST, Scope] = {}  # of names and statements
        self._nodes: defaultdict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        self._reads: dict[str, dict[Scope, list[ast.Name]]] = {}
        self._is_ascii = text.isascii()
        binder = Binder(self.name, self.is_package)
        self._walk([self.tree], self.scope, binder)
        binder.finish(self.scope)
        self.stars = binder.stars
        self.aliases = binder.aliases

    def _walk(self, parts: Iterable[ast.AST], scope: Scope, binder: Binder) -> None:
        """Records nodes of one scope and all below them, in the order of the source."""
        # What is used at each node is looked up once: this loop is most of the walk.
        nodes = self._nodes
        parents = self.parents
        scope_of = self._scope_of
        syntax = ast.AST
        stack = [*parts]  # not recursion: generated code nests deeply
        push = stack.append
        pop = stack.pop
        while stack:
            node = pop()
            kind = type(node)
            nodes[kind].append(node)
            if kind in _SCOPED:
                scope_of[node] = scope
            if kind in RECORDERS:
                RECORDERS[kind](binder, node, scope)
            elif kind in OUTSIDE:
                self._enter(node, scope, binder)
                continue
            for name in _FIELDS[kind]:
                value = getattr(node, name)
                if type(value) is list:
                    for child in reversed(value):
                        if child is not None:
                            parents[child] = node
                            push(child)
                elif isinstance(value, syntax):
                    parents[value] = node
                    push(value)

    def _enter(self, node: ast.AST, scope: Scope, binder: Binder) -> None:
        """Records what is below a node that has a scope of its own."""
        inner = self._inner(node, scope)
        for name in reversed(_FIELDS[type(node)]):
            value = getattr(node, name)
            if isinstance(value, list):
                parts = value[::-1]
            else:
                parts = [value]
            parts = [part for part in parts if isinstance(part, ast.AST)]
            self.parents.update(dict.fromkeys(parts, node))
            if name in OUTSIDE[type(node)]:
                self._walk(parts, scope, binder)
            else:
                self._walk(parts, inner, binder)

    def _inner(self, node: ast.AST, scope: Scope) -> Scope:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope.bind(node.name, Defined(node))
        assert isinstance(node, ast.ClassDef | FunctionNode)
        inner = self._scopes[node] = Scope(node, scope)
        if not isinstance(node, ast.ClassDef):
            bind_parameters(node, inner)
        return inner

    def of(self, kind: type[Node]) -> list[Node]:
        """All nodes of a type, in the order of the source."""
        return self._nodes.get(kind, [])  # type: ignore[return-value]

    @cached_property
    def calls(self) -> dict[str, list[ast.Call]]:
        """The calls of what has each name, as the last part of its path."""
        found: dict[str, list[ast.Call]] = {}
        for call in self.of(ast.Call):
            found.setdefault(last_name(call.func), []).append(call)
        return found

    @cached_property
    def loads(self) -> dict[str, list[ast.Name]]:
        """Where each name is read."""
        found: dict[str, list[ast.Name]] = {}
        for node in self.of(ast.Name):
            if isinstance(node.ctx, ast.Load):
                found.setdefault(node.id, []).append(node)
        return found

    @cached_property
    def attributes(self) -> dict[str, list[ast.Attribute]]:
        """The attributes of each name, wherever they are read or set."""
        found: dict[str, list[ast.Attribute]] = {}
        for node in self.of(ast.Attribute):
            found.setdefault(node.attr, []).append(node)
        return found

    @cached_property
    def folder(self) -> str:
        """The folder that it is in."""
        return str(self.path.parent)

    @property
    def scopes(self) -> list[Scope]:
        """All scopes, the file's own first."""
        return list(self._scopes.values())

    def scope_of(self, node: ast.AST) -> Scope:
        """The scope in which a node is evaluated; of a function or class, the one around it."""
        child = node
        while isinstance(child, ast.Attribute):
            child = child.value
        if child not in self._scope_of:
            child = node
        while child not in self._scope_of:
            parent = self.parents.get(child)
            if parent is None:
                return self.scope
            if parent in self._scopes and not outside(parent, child):
                return self._scopes[parent]
            child = parent
        return self._scope_of[child]

    def variable(self, name: ast.expr, at: ast.AST | None = None) -> Variable | None:
        """What a name means where it is, or at another place; None for what is no name, and for builtins."""
        if not isinstance(name, ast.Name):
            return None
        if at is None:
            at = name
        return (self._scope_of.get(at) or self.scope_of(at)).lookup(name.id)

    def bindings(self, name: ast.expr) -> list[Binding]:
        """All that binds a name; nothing for what is no name."""
        found = self.variable(name)
        if found:
            return found.bindings
        return []

    def reads(self, name: ast.Name) -> list[ast.Name]:
        """Where the variable is read that a name means."""
        own = self.variable(name)
        if own is None:
            return []
        if name.id not in self._reads:
            found = self._reads[name.id] = {}
            for load in self.loads.get(name.id, ()):
                if (variable := self.variable(load)) is not None:
                    found.setdefault(variable.scope, []).append(load)
        return self._reads[name.id].get(own.scope, [])

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, innermost first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that contains a node, or the node itself."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements among which a statement is."""
        for _, block in ast.iter_fields(self.parents[statement]):
            if isinstance(block, list) and statement in block:
                return block
        return []

    def function(self, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The function around a node."""
        parent = self.parents.get(node)
        while parent is not None and not isinstance(parent, _FUNCTIONS):
            parent = self.parents.get(parent)
        return parent

    def enclosing_class(self, node: ast.AST) -> ast.ClassDef | None:
        """The class around a node."""
        return next((p for p in self.ancestors(node) if isinstance(p, ast.ClassDef)), None)

    @cached_property
    def line_starts(self) -> list[int]:
        """The offset at which each line begins."""
        return [0, *[end.end() for end in NEWLINE.finditer(self.text)]]

    def column(self, line: int, offset: int) -> int:
        """The column in characters of an offset in UTF-8 bytes, as `ast` counts; both from 0."""
        starts = self.line_starts
        if self._is_ascii or line > len(starts):
            return offset
        end = len(self.text)
        if line < len(starts):
            end = starts[line]
        text = self.text[starts[line - 1] : end]
        return len(text.encode()[:offset].decode(errors="replace"))

    def offset(self, line: int, column: int) -> int:
        """The place in the text of a line (from 1) and a column in UTF-8 bytes (from 0)."""
        return self.line_starts[line - 1] + self.column(line, column)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The places in the text where a node begins and ends, without parentheses around it."""
        line, column, end_line, end_column = place_of(node)
        return self.offset(line, column), self.offset(end_line, end_column)

    def source(self, node: ast.AST) -> str:
        """The source of a node as it is in the file."""
        start, end = self.span(node)
        return self.text[start:end]

    def lines(self, node: ast.AST) -> tuple[int, int]:
        """The places in the text where the first line of a node begins and its last line ends, its newline included."""
        starts = self.line_starts
        first, _, last, _ = place_of(node)
        end = len(self.text)
        if last < len(starts):
            end = starts[last]
        return starts[first - 1], end

    def calls_in(self, function: ast.AST, name: str) -> bool:
        """Whether a function calls something of a name, itself or in a function inside of it."""
        return any(function in self.ancestors(call) for call in self.calls.get(name, ()))


def parsed(code: str | bytes, name: str = "<unknown>") -> ast.Module:
    r"""The syntax tree of code, without what Python says of it on standard error, such as of `"\d"`.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: from `ast.parse`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code, name)


def last_name(expression: ast.AST | None) -> str:
    """`norm` of `torch.linalg.norm`, and of `norm`; "" of what is no name."""
    if isinstance(expression, ast.Name):
        return expression.id
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return ""


def is_name(expression: ast.AST | None, name: str) -> bool:
    """Whether an expression is a name and nothing else: `self`, but not `self.model`."""
    return isinstance(expression, ast.Name) and expression.id == name


def place_of(node: ast.AST) -> tuple[int, int, int, int]:
    """The line and column where a node begins, and those where it ends; the first line for one without a place (a module)."""
    line = getattr(node, "lineno", 1)
    column = getattr(node, "col_offset", 0)
    end_line = getattr(node, "end_lineno", None) or line
    end_column = getattr(node, "end_col_offset", None) or 0
    return line, column, end_line, end_column


def values_given(call: ast.Call) -> list[ast.expr]:
    """What a call is given, by position and by name."""
    return [*call.args, *[keyword.value for keyword in call.keywords]]


def is_method(function: FunctionNode) -> bool:
    """Whether a function is a method, by the name of its first parameter."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return names[:1] in (["self"], ["cls"])


def given(call: ast.Call, function: FunctionNode, parameter: str) -> ast.expr | None:
    """What a call gives for a parameter of a function."""
    for keyword in call.keywords:
        if keyword.arg == parameter:
            return keyword.value
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    if parameter in names:
        position = names.index(parameter) - is_method(function)
    else:
        position = -1
    if 0 <= position < len(call.args) and not isinstance(call.args[position], ast.Starred):
        return call.args[position]
    return None


def root_of(expression: ast.expr) -> ast.Name | None:
    """The name that a dotted or indexed expression begins with."""
    while isinstance(expression, ast.Attribute | ast.Subscript):
        expression = expression.value
    if isinstance(expression, ast.Name):
        return expression
    return None


def words_in(node: ast.AST) -> set[str]:
    """The names that code has in it, also in its imports; comments and strings have none."""
    found = set[str]()
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                found.add(name)
            case ast.arg(arg=name) | ast.keyword(arg=str(name)) | ast.ImportFrom(module=str(name)):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
    return found


def module_name(path: Path) -> str:
    """The dotted form of a file's whole path. Imports are resolved by its end."""
    absolute = path.absolute()
    if absolute.name == "__init__.py":
        return dotted(absolute.parts[1:-1])
    return dotted(absolute.with_suffix("").parts[1:])


def dotted(folders: Iterable[str]) -> str:
    """The dotted form of a path. A dot in the name of a folder stays one: relative imports lead into such folders."""
    return ".".join(name.replace(".", _DOT) for name in folders)


def path_of(module: str) -> str:
    """The path of a dotted form, without what `.py` or `__init__.py` adds to it."""
    return module.replace(".", os.sep).replace(_DOT, ".")
