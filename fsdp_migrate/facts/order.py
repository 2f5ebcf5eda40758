"""Which assignments can give a name the value that it has at a place, by the order of lines and by branches."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.scopes import Assigned

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def reaching(file: File, bindings: Sequence[Assigned], use: ast.AST) -> Iterator[Assigned]:
    """The assignments of a name whose value a use of it can have."""
    for binding in bindings:
        if reaches(file, binding.target, use) and not any(
            _replaces(file, other, binding, use) for other in bindings if other is not binding
        ):
            yield binding


def reaches(file: File, target: ast.AST, use: ast.AST) -> bool:
    """Whether an assignment to a target can have run when a use runs.

    Not where it comes later, or in another branch of the same `if`, unless a loop is around both. Functions run in an
    order that only a run knows, so between two of them the answer is yes.
    """
    if _function(file, target) is not _function(file, use):
        return True
    around = list(file.ancestors(use))
    common = next(node for node in file.ancestors(target) if node in around)
    for node in (common, *file.ancestors(common)):
        if isinstance(node, _LOOPS):
            return True
        if isinstance(node, _FUNCTIONS):
            break
    if _end(file, target) > getattr(use, "lineno", 0):
        return False
    return {_branch(file, common, target), _branch(file, common, use)} != {"body", "orelse"}


def _replaces(file: File, other: Assigned, binding: Assigned, use: ast.AST) -> bool:
    """Whether an assignment between a binding and a use always runs, and its value is not made of the old one."""
    statement = file.statement(other.target)
    if _function(file, statement) is not _function(file, binding.target):
        return False
    between = _end(file, binding.target) < statement.lineno < getattr(use, "lineno", 0)
    block = file.block(statement)
    name = getattr(binding.target, "id", None)
    return (
        between
        and any(node in block for node in (use, *file.ancestors(use)))
        and not any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(other.value))
    )


def _end(file: File, target: ast.AST) -> int:
    """The last line of the statement of an assignment."""
    return getattr(file.statement(target), "end_lineno", 0) or 0


def _function(file: File, node: ast.AST) -> ast.AST | None:
    return next((each for each in file.ancestors(node) if isinstance(each, _FUNCTIONS)), None)


def _branch(file: File, decision: ast.AST, node: ast.AST) -> str:
    """The branch of a decision that a node is in: `body`, `orelse`; "" for its test and for what is no decision."""
    inside = {node, *file.ancestors(node)}
    if isinstance(decision, ast.If | ast.IfExp):
        for name in ("body", "orelse"):
            branch = getattr(decision, name)
            if any(each in inside for each in (branch if isinstance(branch, list) else [branch])):
                return name
    return ""
