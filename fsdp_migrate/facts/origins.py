"""Where a value comes from, one step back at a time.

What a name is bound to, what calls give for a parameter, what a function returns, and what an attribute is set to. Each
search of this package and of the rules takes these steps, and asks its own question of what it comes to.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from fsdp_migrate.facts.file import File, given, is_method, last_name
from fsdp_migrate.facts.nodes import all_are, any_is
from fsdp_migrate.facts.program import Definition, External, Inner, Program
from fsdp_migrate.facts.scopes import Assigned, FunctionNode, Imported, Parameter

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Origin(NamedTuple):
    """One step back.

    Attributes:
        value: an expression that a value can come from.
        file: the file that it is in.
        path: which element of it is meant: (1,) for `b` in `a, b = value`; () for all of it.
    """

    value: ast.expr
    file: File
    path: tuple[int, ...] = ()


class Origins:
    """The steps back in one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.given = cache(self._given)  # a parameter is read in many places
        self.called = cache(self._called)

    def of_name(self, name: ast.expr, file: File) -> Iterator[Origin]:
        """What a name can be bound to: by assignments that reach it, and by calls of the function whose parameter it is."""
        bindings = file.bindings(name)
        assigned = [each for each in bindings if isinstance(each, Assigned)]
        yield from (of_assigned(each, file) for each in reaching(file, assigned, name))
        for binding in bindings:
            if isinstance(binding, Parameter):
                yield from self.given(binding, file)

    def _given(self, parameter: Parameter, file: File) -> tuple[Origin, ...]:
        """What the calls of a function by its name, or by that of `f = lambda p: ...`, give for a parameter."""
        function = parameter.function
        found = []
        for other, call in self._calls(function, file):
            value = given(call, function, parameter.argument.arg)
            if value is not None:
                found.append(Origin(value, other))
        return tuple(found)

    def _calls(self, function: FunctionNode, file: File) -> Iterator[tuple[File, ast.Call]]:
        """The calls that can be of a function; of a method, all calls by its name."""
        name = _name_of(function, file)
        if not name:
            return
        for other, call in self.program.calls(name):
            called = None if is_method(function) else self.called(call, other)
            if called is None or called.node is function:
                yield other, call

    def _called(self, call: ast.Call, file: File) -> Definition | None:
        """The function or class of the program that a call calls; None if it is not known."""
        match call.func:
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                cls = file.enclosing_class(call)
                return _method(Definition(file, cls), name) if cls else None
            case ast.Attribute(value=ast.Call(func=ast.Name() | ast.Attribute() as cls), attr=name):
                made = self.program.definition(cls, file)  # `Builder(...).build()`
                return _method(made, name) if made else None
            case ast.Name() | ast.Attribute():
                return self.program.definition(call.func, file)
        return None


def _method(cls: Definition, name: str) -> Definition | None:
    """A method that a class itself has."""
    if isinstance(cls.node, ast.ClassDef):
        for method in cls.node.body:
            if isinstance(method, ast.FunctionDef) and method.name == name:
                return Definition(cls.file, method)
    return None


def origins_of(program: Program) -> Origins:
    """The steps back in a program."""
    return program.once(Origins)


def _name_of(function: FunctionNode, file: File) -> str:
    """The name by which a function is called; that of its class for `__init__`."""
    if isinstance(function, ast.Lambda):
        targets = getattr(file.parents[function], "targets", [None])
        return last_name(targets[0])
    name = function.name
    cls = file.enclosing_class(function)
    if name == "__init__" and cls is not None:
        return cls.name
    return name


def returned(made: Definition, path: Sequence[int] = ()) -> Iterator[Origin]:
    """What a function returns, or an element of it as far as the path can be followed."""
    for statement in made.file.of(ast.Return):
        if statement.value is not None and made.file.function(statement) is made.node:
            value, _ = within(statement.value, path)
            yield Origin(value, made.file)


def stored(file: File, name: str, cls: ast.ClassDef | None = None) -> Iterator[Assigned]:
    """The assignments of a file to attributes of a name, or only those inside of one class."""
    for store in file.attributes.get(name, ()):
        if not isinstance(store.ctx, ast.Store) or (cls and file.enclosing_class(store) is not cls):
            continue
        path: tuple[int, ...] = ()
        statement = file.parents[store]
        if isinstance(statement, ast.Tuple):  # `self.model, self.optimizer = build()`
            path = (statement.elts.index(store),)
            statement = file.parents[statement]
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            yield Assigned(store, statement.value, path)


def of_assigned(binding: Assigned, file: File) -> Origin:
    """What an assignment binds: the element of a literal tuple, else its value with the path into it."""
    value, is_it = within(binding.value, binding.path)
    if is_it:
        return Origin(value, file)
    return Origin(binding.value, file, binding.path)


def within(value: ast.expr, path: Sequence[int]) -> tuple[ast.expr, bool]:
    """The element of nested tuples that a path leads to, as far as it can be followed, and whether that is to its end."""
    for index in path:
        if isinstance(value, ast.Tuple | ast.List):
            elements = value.elts
        else:
            elements = []
        if index >= len(elements) or any_is(elements, ast.Starred):
            return value, False
        value = elements[index]
    return value, True


def reaching(file: File, bindings: Sequence[Assigned], use: ast.AST) -> Iterator[Assigned]:
    """The assignments of a name whose value a use of it can have."""
    for binding in bindings:
        if reaches(file, binding.target, use) and not _is_replaced(file, binding, bindings, use):
            yield binding


def _is_replaced(file: File, binding: Assigned, bindings: Sequence[Assigned], use: ast.AST) -> bool:
    """Whether an attribute is assigned again further down in the same block, before another function can read it."""
    function = file.function(binding.target)
    if not isinstance(binding.target, ast.Attribute) or file.function(use) is function:
        return False
    statement = file.statement(binding.target)
    block = file.block(statement)
    for other in bindings:
        again = file.statement(other.target)
        if again is statement or again not in block:
            continue
        between = block[block.index(statement) + 1 : block.index(again)]
        is_below = block.index(again) > block.index(statement)
        if is_below and not any(map(_calls_method, between)):
            return True
    return False


def _calls_method(statement: ast.stmt) -> bool:
    """Whether a statement may call a method of its own object."""
    return any(
        isinstance(node, ast.Call) and "self" in ast.unparse(node) for node in ast.walk(statement)
    )


def reaches(file: File, target: ast.AST, use: ast.AST) -> bool:
    """Whether an assignment to a target can have run when a use runs.

    Not where it comes later, or in another branch of the same `if`, unless a loop is around both. Functions run in an
    order that only a run knows, so between two of them the answer is yes.
    """
    around = _within_function(file, use)
    part = None
    above = target
    while above not in around:
        if above not in file.parents or (part and isinstance(above, _FUNCTIONS)):
            return True  # they are in two functions
        part = above
        above = file.parents[above]
    is_before = _end(file, target) <= getattr(use, "lineno", 0)
    if is_before and not isinstance(above, ast.If | ast.IfExp):
        return True
    chain = [*around]
    place = around[above]
    if any_is(chain[place:], _LOOPS):
        return True
    parts = (*([part] if part else ()), *chain[:place][-1:])  # that lead to either
    return is_before and {_branch(above, each) for each in parts} != {"body", "orelse"}


def _within_function(file: File, node: ast.AST) -> dict[ast.AST, int]:
    """A node and what is around it, up to the function that it is in, or the file, each with its place."""
    found = {node: 0}
    parent = file.parents.get(node)
    while parent is not None:
        found[parent] = len(found)
        if isinstance(parent, _FUNCTIONS):
            parent = None
        else:
            parent = file.parents.get(parent)
    return found


def _end(file: File, target: ast.AST) -> int:
    """The last line of the statement of an assignment."""
    return getattr(file.statement(target), "end_lineno", 0) or 0


def _branch(decision: ast.AST, part: ast.AST) -> str:
    """The branch of a decision that a part of it is: `body`, `orelse`; "" for its test and for what is no decision."""
    if isinstance(decision, ast.If | ast.IfExp):
        for name in ("body", "orelse"):
            branch = getattr(decision, name)
            if part is branch or (isinstance(branch, list) and part in branch):
                return name
    return ""


@dataclass(frozen=True, eq=False)
class Value:
    """An expression that made a value, and the file that it is in."""

    node: ast.expr
    file: File


def value_of(program: Program, file: File, expression: ast.expr) -> Value | None:
    """The one expression that gives `expression` its value; None if there may be another, or it is not known.

    Follows names that are bound once, in this file or in the one that they are imported from. Anything but a name or a
    dotted name is its own value.
    """
    return _Search(program).of(file, expression)


class _Search:
    def __init__(self, program: Program) -> None:
        self.program = program
        self._seen: set[int] = set()

    def of(self, file: File, expression: ast.expr) -> Value | None:
        if isinstance(expression, ast.Name):
            bindings = file.bindings(expression)
            if len(bindings) == 1 and isinstance(bindings[0], Assigned):
                return self.follow(file, bindings[0])
            if all_are(bindings, Imported):
                return self.imported(file, expression)
            return None
        if isinstance(expression, ast.Attribute):
            return self.imported(file, expression)
        return Value(expression, file)

    def follow(self, file: File, binding: Assigned) -> Value | None:
        origin = of_assigned(binding, file)
        if origin.path or id(binding) in self._seen:
            return None
        self._seen.add(id(binding))
        return self.of(file, origin.value)

    def imported(self, file: File, expression: ast.expr) -> Value | None:
        """The value of a name of another file, or the name itself where it is not the program's."""
        meanings = self.program.meanings(expression, file)
        if len(meanings) == 1 and isinstance(meanings[0], External):
            return Value(expression, file)
        place = self.definer(file, expression)
        if place:
            bindings = place[0].scope.bindings.get(place[1], [])
        else:
            bindings = []
        if place and len(bindings) == 1 and isinstance(bindings[0], Assigned):
            return self.follow(place[0], bindings[0])
        return None

    def definer(self, file: File, expression: ast.expr) -> tuple[File, str] | None:
        """The file, and the name in it, that an imported name was defined under."""
        if isinstance(expression, ast.Attribute):
            owners = self.program.meanings(expression.value, file)
            if len(owners) == 1 and isinstance(owners[0], Inner):
                return owners[0].file, expression.attr
            return None
        bindings = file.bindings(expression)
        binding = None
        if len(bindings) == 1:
            binding = bindings[0]
        if isinstance(binding, Imported) and binding.member is not None:
            inner = self.program.find(binding.module, file)
            if inner is None:
                return None
            return (inner, binding.member)
        return None
