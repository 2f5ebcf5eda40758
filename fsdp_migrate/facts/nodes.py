"""What many rules ask of one node of a program: its literal value, the object of a method, the function around it."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.scopes import Assigned, Binding


def constant(node: ast.AST | None) -> object:
    """The value of a literal; None of anything else."""
    if isinstance(node, ast.Constant):
        return node.value
    return None


def text_of(node: ast.AST | None) -> str:
    """The value of a literal as text; "" of anything else."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    return ""


def receiver(call: ast.AST | None) -> ast.expr | None:
    """`model` of `model.clip_grad_norm_(1.0)`; None of a call of a function."""
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        return call.func.value
    return None


def loops_of(node: ast.AST) -> Sequence[ast.For | ast.comprehension]:
    """The loops that a `for` or a comprehension is; none of anything else."""
    match node:
        case ast.For():
            return [node]
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            return node.generators
    return []


def targets_of(assignment: ast.Assign | ast.AnnAssign | ast.NamedExpr) -> Sequence[ast.expr]:
    """What an assignment gives a value."""
    if isinstance(assignment, ast.Assign):
        return assignment.targets
    return [assignment.target]


def assigned_value(binding: Binding) -> ast.expr | None:
    """What an assignment binds; None of another binding."""
    if isinstance(binding, Assigned):
        return binding.value
    return None


def name_around(file: File, node: ast.AST) -> str:
    """The name of the function around a node; "" at the top of the file."""
    function = file.function(node)
    if function is None:
        return ""
    return function.name


def calls_around(file: File, node: ast.AST) -> Sequence[ast.Call]:
    """The calls in the same file of the function around a node, by its name."""
    return file.calls.get(name_around(file, node), ())
