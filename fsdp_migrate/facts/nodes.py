"""What many rules ask of one node of a program: its literal value, the object of a method, the function around it."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Sequence
from types import UnionType

from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.scopes import Assigned, Binding, Parameter


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


def any_is(nodes: Iterable[object], kind: type | UnionType | tuple[type, ...]) -> bool:
    """Whether one of some nodes or bindings is of a kind."""
    return any(isinstance(node, kind) for node in nodes)


def all_are(nodes: Iterable[object], kind: type | UnionType | tuple[type, ...]) -> bool:
    """Whether all of some nodes or bindings are of a kind."""
    return all(isinstance(node, kind) for node in nodes)


def has_star(call: ast.Call) -> bool:
    """Whether a call unpacks a sequence: `f(*values)`."""
    return any_is(call.args, ast.Starred)


def has_double_star(call: ast.Call) -> bool:
    """Whether a call unpacks a dictionary: `f(**options)`."""
    return None in [each.arg for each in call.keywords]


def any_below(paths: Iterable[str], package: str | tuple[str, ...]) -> bool:
    """Whether one of some dotted paths is in a package: `torch.nn.`."""
    return any(path.startswith(package) for path in paths)


def has_any(text: Container[str], words: Iterable[str]) -> bool:
    """Whether a text, or a collection of texts, contains one of some words."""
    return any(word in text for word in words)


def is_none(node: ast.AST | None) -> bool:
    """Whether an expression is the literal None."""
    return isinstance(node, ast.Constant) and node.value is None


def is_parameter(bindings: Iterable[Binding], argument: ast.arg) -> bool:
    """Whether one of some bindings is a parameter of a function."""
    return argument in [each.argument for each in bindings if isinstance(each, Parameter)]
