"""One parsed file: its scopes, and what each name in them is bound to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

# What ends a line for Python's tokenizer; `str.splitlines` knows more.
NEWLINE = re.compile(r"\r\n|\r|\n")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
ScopeNode = ast.Module | ast.ClassDef | FunctionNode
_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, eq=False)
class Imported:
    """`import a.b as name` (member is None) or `from a import member as name`, with the module made absolute."""

    statement: ast.Import | ast.ImportFrom
    alias: ast.alias
    module: str
    member: str | None


@dataclass(frozen=True, eq=False)
class Assigned:
    """`name = value`, or a part of it: `_, name = value` has the path (1,)."""

    target: ast.expr
    value: ast.expr
    path: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Parameter:
    """A parameter of a function; `position` is None for keyword-only, `*args` and `**kwargs`."""

    function: FunctionNode
    argument: ast.arg
    position: int | None


@dataclass(frozen=True, eq=False)
class Defined:
    """`def name` or `class name`."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, eq=False)
class Opaque:
    """Bound in a way that says nothing about the value: a loop, `with … as`, `except … as`, `del`, `+=`, `global`."""

    node: ast.AST


Binding = Imported | Assigned | Parameter | Defined | Opaque


@dataclass(eq=False)
class Scope:
    """A module, class, function or lambda, with what its own statements bind."""

    node: ScopeNode
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)  # declared global or nonlocal here

    def bind(self, name: str, binding: Binding) -> None:
        self.bindings.setdefault(name, []).append(binding)


class Module:
    """One file of the project.

    Args:
        path: where it is.
        shown: the path as findings print it.
        name: the dotted form of its whole path, which ends in the name by which it is imported.
        text: its source.

    Raises:
        SyntaxError, ValueError, RecursionError: from `ast.parse`.
    """

    def __init__(self, path: Path, shown: str, name: str, text: str) -> None:
        self.path = path
        self.shown = shown
        self.name = name
        self.text = text
        self.tree = ast.parse(text)
        self._is_ascii = text.isascii()
        self.folder = str(path.parent)
        self.is_package = path.name == "__init__.py"
        self.parents: dict[ast.AST, ast.AST] = {}
        self.scope = Scope(self.tree, None)
        self.scopes: dict[ast.AST, Scope] = {self.tree: self.scope}
        self.stars: list[tuple[str, ast.ImportFrom]] = []  # `from m import *`
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self.calls: list[ast.Call] = []
        self.attributes: list[ast.Attribute] = []
        self.loads: dict[str, list[ast.Name]] = {}
        self._scope_of: dict[ast.AST, Scope] = {}
        _Binder(self).run()

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(end.end() for end in NEWLINE.finditer(self.text))]

    def column(self, line: int, offset: int) -> int:
        """The column in characters of an offset in UTF-8 bytes, as `ast` counts; both from 0."""
        starts = self._line_starts
        if self._is_ascii or line > len(starts):
            return offset
        text = self.text[starts[line - 1] : starts[line] if line < len(starts) else None]
        return len(text.encode()[:offset].decode(errors="replace"))

    def source(self, node: ast.AST) -> str:
        """The source of an expression or statement as it stands in the file."""
        line, end_line = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
        if line is None or end_line is None:
            return ast.unparse(node)
        starts = self._line_starts
        start = starts[line - 1] + self.column(line, node.col_offset)  # type: ignore[attr-defined]
        end = starts[end_line - 1] + self.column(end_line, node.end_col_offset)  # type: ignore[attr-defined]
        return self.text[start:end]

    @cached_property
    def quoted(self) -> list[tuple[ast.Constant, ast.expr]]:
        """The strings that stand for types in annotations and casts, with the expression that each holds."""
        found: list[tuple[ast.Constant, ast.expr]] = []
        for node in ast.walk(self.tree):
            annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
            if isinstance(node, ast.Call) and node.args and _is_name(node.func, "cast"):
                annotation = node.args[0]
            for string, text in _strings(annotation):
                try:
                    found.append((string, ast.parse(text, mode="eval").body))
                except (SyntaxError, ValueError):
                    continue
        return found

    @cached_property
    def executed(self) -> list[tuple[ast.Constant, ast.AST]]:
        """The strings that are read as code, `eval("FSDP")` and `globals()["FSDP"]`, with the code that each holds."""
        strings = [
            call.args[0] for call in self.calls if call.args and _is_name(call.func, "eval", "exec")
        ]
        for call in self.calls:
            around = self.parents[call]
            if _is_name(call.func, "globals", "locals", "vars") and isinstance(
                around, ast.Subscript
            ):
                strings.append(around.slice)
        found: list[tuple[ast.Constant, ast.AST]] = []
        for string in strings:
            if isinstance(string, ast.Constant) and isinstance(string.value, str):
                try:
                    found.append((string, ast.parse(string.value)))
                except (SyntaxError, ValueError):
                    continue
        return found

    @cached_property
    def is_rewritten(self) -> bool:
        """Whether code of this file may give its top-level names other values by `exec(...)` or `globals()[...] = ...`."""
        return any(
            _is_name(call.func, "exec")
            or (_is_name(call.func, "globals") and _may_store(self.parents[call]))
            for call in self.calls
        )

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around `node`, innermost first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def scope_of(self, node: ast.AST) -> Scope:
        """The scope in which an expression or statement is evaluated; for a function or class, the one it stands in."""
        known = self._scope_of.get(node)
        if known is None:
            known = self._scope_of[node] = self._search_scope(node)
        return known

    def _search_scope(self, node: ast.AST) -> Scope:
        child = node
        for parent in self.ancestors(node):
            if parent in self.scopes and not _outside(parent, child):
                return self.scopes[parent]
            child = parent
        return self.scope

    def lookup(self, name: str, scope: Scope) -> tuple[Scope, list[Binding]] | None:
        """The scope that binds a name as seen from `scope`, and its bindings there; None for builtins and star imports."""
        here: Scope | None = scope
        first = True
        while here is not None:
            skip = (
                isinstance(here.node, ast.ClassDef) and not first
            )  # class names are not seen from methods
            if not skip and name in here.bindings and name not in here.elsewhere:
                return here, here.bindings[name]
            first, here = False, here.parent
        return None

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that contains `node`, or `node` itself."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def enclosing_class(self, node: ast.AST) -> ast.ClassDef | None:
        """The class in whose method `node` stands."""
        for parent in self.ancestors(node):
            if isinstance(parent, ast.ClassDef):
                return parent
        return None

    def enclosing_function(self, node: ast.AST) -> FunctionNode | None:
        """The function or lambda around `node`."""
        for parent in self.ancestors(node):
            if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                return parent
        return None


def _is_name(expression: ast.expr, *names: str) -> bool:
    return isinstance(expression, ast.Name) and expression.id in names


def _may_store(use: ast.AST) -> bool:
    """Whether something is done with a dictionary but looking up."""
    if isinstance(use, ast.Subscript):
        return not isinstance(use.ctx, ast.Load)
    return not (isinstance(use, ast.Attribute) and use.attr in {"get", "items", "keys", "values"})


def _outside(scope_node: ast.AST, child: ast.AST) -> bool:
    """Whether a child of a function or class is evaluated outside it: decorators, defaults, bases, annotations."""
    if isinstance(scope_node, ast.ClassDef):
        return (
            child in scope_node.decorator_list
            or child in scope_node.bases
            or isinstance(child, ast.keyword)
        )
    if isinstance(scope_node, ast.FunctionDef | ast.AsyncFunctionDef):
        return (
            child in scope_node.decorator_list
            or child is scope_node.args
            or child is scope_node.returns
        )
    if isinstance(scope_node, ast.Lambda):
        return child is scope_node.args
    return False


def _strings(annotation: ast.expr | None) -> Iterator[tuple[ast.Constant, str]]:
    """The strings in an annotation that are types; those of a `Literal` are values."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        yield annotation, annotation.value
    elif isinstance(annotation, ast.Subscript):
        name = annotation.value
        if "Literal" not in {getattr(name, "id", None), getattr(name, "attr", None)}:
            yield from _strings(annotation.slice)
    elif isinstance(annotation, ast.Tuple | ast.List):
        for element in annotation.elts:
            yield from _strings(element)
    elif isinstance(annotation, ast.BinOp):
        yield from _strings(annotation.left)
        yield from _strings(annotation.right)


class _Binder:
    """Fills a module's tables in one walk."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.declared: list[tuple[ast.Global | ast.Nonlocal, Scope]] = []

    def run(self) -> None:
        self.walk()
        self.redirect()

    def walk(self) -> None:
        stack: list[tuple[ast.AST, Scope]] = [(self.module.tree, self.module.scope)]
        while stack:  # a stack, not recursion: generated code nests deeply
            node, scope = stack.pop()
            inner = self.enter(node, scope)
            for child in reversed(list(ast.iter_child_nodes(node))):
                self.module.parents[child] = node
                outside = node in self.module.scopes and _outside(node, child)
                stack.append((child, scope if outside else inner))

    def enter(self, node: ast.AST, scope: Scope) -> Scope:
        module = self.module
        if isinstance(node, _SCOPES) and not isinstance(node, ast.Module):
            if not isinstance(node, ast.Lambda):
                scope.bind(node.name, Defined(node))
            inner = Scope(node, scope)
            module.scopes[node] = inner
            if not isinstance(node, ast.ClassDef):
                _bind_parameters(node, inner)
            return inner
        if isinstance(node, ast.Call):
            module.calls.append(node)
        elif isinstance(node, ast.Attribute):
            module.attributes.append(node)
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                module.loads.setdefault(node.id, []).append(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self.bind_import(node, scope)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                _bind_target(scope, target, node.value, ())
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                _bind_target(scope, node.target, node.value, ())
        elif isinstance(node, ast.NamedExpr):
            _bind_target(scope, node.target, node.value, ())
        elif isinstance(node, (ast.AugAssign, ast.For | ast.AsyncFor | ast.comprehension)):
            _bind_opaque(scope, node.target, node)
        elif isinstance(node, ast.withitem):
            if node.optional_vars is not None:
                _bind_opaque(scope, node.optional_vars, node)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            if node.name:
                scope.bind(node.name, Opaque(node))
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                _bind_opaque(scope, target, node)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            scope.elsewhere.update(node.names)
            self.declared.append((node, scope))
        return scope

    def redirect(self) -> None:
        """A name declared global or nonlocal is bound by two scopes: what it holds is anybody's guess."""
        for node, scope in self.declared:
            for name in node.names:
                is_global = isinstance(node, ast.Global)
                owner = self.module.scope if is_global else _function_around(scope, name)
                for binding in (Opaque(node), *scope.bindings.get(name, ())):
                    owner.bind(name, binding)

    def bind_import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        self.module.imports.append(node)
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.split(".")[0]
                target = alias.name if alias.asname else alias.name.split(".")[0]
                scope.bind(bound, Imported(node, alias, target, None))
            return
        source = absolute(node, self.module.name, self.module.is_package)
        for alias in node.names:
            if alias.name == "*":
                self.module.stars.append((source, node))
            else:
                scope.bind(alias.asname or alias.name, Imported(node, alias, source, alias.name))


def absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """The absolute dotted name of the module that `from … import` names, read inside `module`."""
    if not node.level:
        return node.module or ""
    parts = module.split(".") if module else []
    keep = len(parts) - node.level + (1 if is_package else 0)
    base = parts[: max(keep, 0)]
    return ".".join([*base, *([node.module] if node.module else [])])


def _function_around(scope: Scope, name: str) -> Scope:
    """The scope that `nonlocal name` means."""
    outer = scope.parent
    while outer is not None and outer.parent is not None:
        is_function = not isinstance(outer.node, ast.ClassDef)
        if is_function and name in outer.bindings and name not in outer.elsewhere:
            return outer
        outer = outer.parent
    return scope


def _bind_parameters(node: FunctionNode, scope: Scope) -> None:
    arguments = node.args
    for position, argument in enumerate([*arguments.posonlyargs, *arguments.args]):
        scope.bind(argument.arg, Parameter(node, argument, position))
    rest = [*arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    for extra in rest:
        if extra is not None:
            scope.bind(extra.arg, Parameter(node, extra, None))


def _bind_target(scope: Scope, target: ast.expr, value: ast.expr, path: tuple[int, ...]) -> None:
    if isinstance(target, ast.Name):
        scope.bind(target.id, Assigned(target, value, path))
    elif isinstance(target, ast.Tuple | ast.List):
        if any(isinstance(element, ast.Starred) for element in target.elts):
            _bind_opaque(scope, target, target)
            return
        for index, element in enumerate(target.elts):
            _bind_target(scope, element, value, (*path, index))


def _bind_opaque(scope: Scope, target: ast.expr, node: ast.AST) -> None:
    for name in ast.walk(target):
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store | ast.Del):
            scope.bind(name.id, Opaque(node))
