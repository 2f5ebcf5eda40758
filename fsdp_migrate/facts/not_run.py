"""Code of a function that a call never runs, as literal arguments decide the tests around it: `build(world_size=1)`."""

import ast
import operator
from collections.abc import Callable, Mapping

from fsdp_migrate.facts.file import File, given
from fsdp_migrate.facts.scopes import Parameter

_OPERATORS: Mapping[type[ast.cmpop], Callable[[object, object], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,  # type: ignore[dict-item]
    ast.LtE: operator.le,  # type: ignore[dict-item]
    ast.Gt: operator.gt,  # type: ignore[dict-item]
    ast.GtE: operator.ge,  # type: ignore[dict-item]
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


def is_not_run(file: File, node: ast.AST, function: ast.FunctionDef, call: ast.Call) -> bool:
    """Whether a call of a function does not get to a node of it, because of an `if` around the node."""
    child = node
    for around in file.ancestors(node):
        if around is function:
            return False
        if isinstance(around, ast.If) and child is not around.test:
            decided = _decided(file, around.test, function, call)
            if decided is not None and decided is not (child in around.body):
                return True
        child = around
    return False


def _decided(file: File, test: ast.expr, function: ast.FunctionDef, call: ast.Call) -> bool | None:
    """What a test says for a call; None where its literal arguments do not decide it."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            decided = _decided(file, operand, function, call)
            return None if decided is None else not decided
        case ast.BoolOp(op=op, values=values):
            parts = [_decided(file, each, function, call) for each in values]
            decisive = isinstance(op, ast.Or)
            if decisive in parts:
                return decisive
            return None if None in parts else not decisive
        case ast.Compare(left=left, ops=[compared], comparators=[right]):
            values_of = [_literal(file, each, function, call) for each in (left, right)]
            compare = _OPERATORS.get(type(compared))
            if compare is None or ... in values_of:
                return None
            try:
                return bool(compare(*values_of))
            except TypeError:
                return None
    value = _literal(file, test, function, call)
    return None if value is ... else bool(value)


def _literal(file: File, node: ast.expr, function: ast.FunctionDef, call: ast.Call) -> object:
    """A literal, or the one that a call gives for a parameter; `...` for any other expression."""
    if isinstance(node, ast.Constant):
        return node.value
    if not isinstance(node, ast.Name):
        return ...
    match file.bindings(node):
        case [Parameter(function=owner, argument=argument)] if owner is function:
            passed = given(call, function, argument.arg)
            if isinstance(passed, ast.Constant):
                return passed.value
    return ...
