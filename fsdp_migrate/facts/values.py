"""Where a value comes from: from a name back to the assignments that can have run, and to the one expression that made it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.program import External, Inner, Program
from fsdp_migrate.facts.scopes import Assigned, Imported

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


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
            if all(isinstance(binding, Imported) for binding in bindings):
                return self.imported(file, expression)
            return None
        if isinstance(expression, ast.Attribute):
            return self.imported(file, expression)
        return Value(expression, file)

    def follow(self, file: File, binding: Assigned) -> Value | None:
        value = element(binding)
        if value is None or id(binding) in self._seen:
            return None
        self._seen.add(id(binding))
        return self.of(file, value)

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


def element(binding: Assigned) -> ast.expr | None:
    """The expression that an assignment binds: the element of a tuple where the target is one; None if not known."""
    value, is_it = within(binding.value, binding.path) if binding.value else (None, False)
    if is_it:
        return value
    return None


def within(value: ast.expr, path: Sequence[int]) -> tuple[ast.expr, bool]:
    """The element of nested tuples that a path leads to, as far as it can be followed, and whether that is to its end."""
    for index in path:
        if isinstance(value, ast.Tuple | ast.List):
            elements = value.elts
        else:
            elements = []
        if index >= len(elements) or any(isinstance(item, ast.Starred) for item in elements):
            return value, False
        value = elements[index]
    return value, True


def reaching(file: File, bindings: Sequence[Assigned], use: ast.AST) -> Iterator[Assigned]:
    """The assignments of a name whose value a use of it can have."""
    return (binding for binding in bindings if reaches(file, binding.target, use))


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
    if any(isinstance(node, _LOOPS) for node in chain[place:]):
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
