"""The scopes of one file, and what each name in them is bound to."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
ScopeNode = ast.Module | ast.ClassDef | FunctionNode


@dataclass(eq=False)
class Imported:
    """`import a.b as name` (member is None) or `from a import member as name`, with the module made absolute."""

    statement: ast.Import | ast.ImportFrom
    alias: ast.alias
    module: str
    member: str | None


@dataclass(eq=False)
class Assigned:
    """`name = value`, or an element of it: `_, name = value` has the path (1,)."""

    target: ast.expr
    value: ast.expr
    path: tuple[int, ...] = ()


@dataclass(eq=False)
class Parameter:
    """A parameter of a function."""

    function: FunctionNode
    argument: ast.arg


@dataclass(eq=False)
class Defined:
    """`def name` or `class name`."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(eq=False)
class Opaque:
    """Bound in a way that says nothing about the value: a loop, `with ... as`, `except ... as`, `del`, `+=`, `global`."""

    node: ast.AST


Binding = Imported | Assigned | Parameter | Defined | Opaque


class Variable(NamedTuple):
    """What a name means: the scope that binds it, and all that binds it there."""

    scope: Scope
    bindings: list[Binding]

    @property
    def assigned(self) -> list[Assigned]:
        """The assignments among its bindings."""
        return [binding for binding in self.bindings if isinstance(binding, Assigned)]


@dataclass(eq=False)
class Scope:
    """A module, class, function or lambda, with what its own statements bind."""

    node: ScopeNode
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)  # declared global or nonlocal here
    _known: dict[str, Variable | None] = field(default_factory=dict)

    def bind(self, name: str, binding: Binding) -> None:
        """Adds a binding of a name."""
        self.bindings.setdefault(name, []).append(binding)

    def lookup(self, name: str) -> Variable | None:
        """What a name means in this scope; None for builtins and star imports."""
        if name not in self._known:
            self._known[name] = self._found(name)
        return self._known[name]

    def _found(self, name: str) -> Variable | None:
        here: Scope | None = self
        while here is not None:
            # Methods do not see the names of their class.
            visible = here is self or not isinstance(here.node, ast.ClassDef)
            if visible and name in here.bindings and name not in here.elsewhere:
                return Variable(here, here.bindings[name])
            here = here.parent
        return None


class Binder:
    """Collects the scopes and bindings of a file, node by node.

    Attributes:
        stars: the modules of `from module import *`.
        aliases: the names that are bound to something of another name: by an import, or as `name = other.name`.
    """

    def __init__(self, module: str, is_package: bool) -> None:
        self.module = module
        self.is_package = is_package
        self.stars: list[tuple[str, ast.ImportFrom]] = []
        self.aliases: set[str] = set()
        self._declared: list[tuple[ast.Global | ast.Nonlocal, Scope]] = []

    def finish(self, top: Scope) -> None:
        """A name declared global or nonlocal is bound by two scopes: its value cannot be known."""
        for node, scope in self._declared:
            for name in node.names:
                if isinstance(node, ast.Global):
                    owner = top
                else:
                    owner = _function_around(scope, name)
                for binding in (Opaque(node), *scope.bindings.get(name, ())):
                    owner.bind(name, binding)

    def _import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            bound = alias.asname or alias.name.split(".")[0]
            if alias.asname:
                target = alias.name
            else:
                target = bound
            scope.bind(bound, Imported(node, alias, target, None))
            self.aliases.add(bound)

    def _import_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        source = absolute(node, self.module, self.is_package)
        for alias in node.names:
            if alias.name == "*":
                self.stars.append((source, node))
            else:
                bound = alias.asname or alias.name
                scope.bind(bound, Imported(node, alias, source, alias.name))
                self.aliases.add(bound)

    def _assign(self, node: ast.Assign, scope: Scope) -> None:
        for target in node.targets:
            self._bind(scope, target, node.value)

    def _assign_one(self, node: ast.AnnAssign | ast.NamedExpr, scope: Scope) -> None:
        if node.value is not None:
            self._bind(scope, node.target, node.value)

    def _bind(self, scope: Scope, target: ast.expr, value: ast.expr) -> None:
        _bind_target(scope, target, value, ())
        if isinstance(value, ast.Name | ast.Attribute):
            self.aliases.update(_stored(target))

    def _target(
        self, node: ast.AugAssign | ast.For | ast.AsyncFor | ast.comprehension, scope: Scope
    ) -> None:
        _bind_opaque(scope, node.target, node)

    def _with(self, node: ast.withitem, scope: Scope) -> None:
        if node.optional_vars is not None:
            _bind_opaque(scope, node.optional_vars, node)

    def _named(self, node: ast.ExceptHandler | ast.MatchAs | ast.MatchStar, scope: Scope) -> None:
        if node.name:
            scope.bind(node.name, Opaque(node))

    def _delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            _bind_opaque(scope, target, node)

    def _declare(self, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
        scope.elsewhere.update(node.names)
        self._declared.append((node, scope))


# What records the names that a node binds in its scope.
RECORDERS: dict[type[ast.AST], Callable[[Binder, Any, Scope], None]] = {
    ast.Import: Binder._import,
    ast.ImportFrom: Binder._import_from,
    ast.Assign: Binder._assign,
    ast.AnnAssign: Binder._assign_one,
    ast.NamedExpr: Binder._assign_one,
    ast.AugAssign: Binder._target,
    ast.For: Binder._target,
    ast.AsyncFor: Binder._target,
    ast.comprehension: Binder._target,
    ast.withitem: Binder._with,
    ast.ExceptHandler: Binder._named,
    ast.MatchAs: Binder._named,
    ast.MatchStar: Binder._named,
    ast.Delete: Binder._delete,
    ast.Global: Binder._declare,
    ast.Nonlocal: Binder._declare,
}


# What of a function or class is evaluated outside it, by its fields.
_OF_FUNCTIONS = frozenset({"decorator_list", "args", "returns"})
OUTSIDE: dict[type[ast.AST], frozenset[str]] = {
    ast.FunctionDef: _OF_FUNCTIONS,
    ast.AsyncFunctionDef: _OF_FUNCTIONS,
    ast.Lambda: frozenset({"args"}),
    ast.ClassDef: frozenset({"bases", "keywords", "decorator_list"}),
}


def outside(scope_node: ast.AST, child: ast.AST) -> bool:
    """Whether a child of a function or class is evaluated outside it: decorators, defaults, bases, annotations."""
    for name in OUTSIDE.get(type(scope_node), ()):
        value = getattr(scope_node, name)
        if child is value or (isinstance(value, list) and child in value):
            return True
    return False


def bind_parameters(node: FunctionNode, scope: Scope) -> None:
    """Binds the parameters of a function in its scope."""
    given = node.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    for argument in every:
        if argument is not None:
            scope.bind(argument.arg, Parameter(node, argument))


def absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """The absolute dotted name of the module that `from ... import` names, read inside `module`."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    keep = len(parts) - node.level
    if is_package:
        keep += 1
    parts = parts[: max(keep, 0)]
    if node.module:
        parts.append(node.module)
    return ".".join(parts)


def _function_around(scope: Scope, name: str) -> Scope:
    """The scope that `nonlocal name` means."""
    outer = scope.parent
    while outer is not None and outer.parent is not None:
        is_function = not isinstance(outer.node, ast.ClassDef)
        if is_function and name in outer.bindings and name not in outer.elsewhere:
            return outer
        outer = outer.parent
    return scope


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
    for name in _stored(target):
        scope.bind(name, Opaque(node))


def _stored(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _stored(element)
    elif isinstance(target, ast.Starred):
        yield from _stored(target.value)
