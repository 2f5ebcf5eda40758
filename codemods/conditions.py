"""Conditions out of expressions that choose between two values."""

import ast
from collections.abc import Callable

from fsdp_migrate.facts.nodes import any_is

_OPPOSITES: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_TRUE = "True"
_FALSE = "False"


def either(test: ast.expr, first: str, second: str, source: Callable[[ast.AST], str]) -> str:
    """An expression that is one value where a test holds, else another: the test itself for True and False.

    Args:
        source: gives the code of a node as it is in the file.
    """
    if first == second:
        return first
    if (first, second) == (_TRUE, _FALSE):
        return source(test)
    if (first, second) == (_FALSE, _TRUE):
        return negated(test, source)
    return f"{first} if {source(test)} else {second}"


def negated(test: ast.expr, source: Callable[[ast.AST], str]) -> str:
    """A test that holds where another one does not: `not a or b` for `a and not b`."""
    match test:
        case ast.UnaryOp(ast.Not(), operand):
            return _joined(source(operand))
        case ast.Compare(left, [op], [right]) if type(op) in _OPPOSITES:
            return _joined(f"{source(left)} {_OPPOSITES[type(op)]} {source(right)}")
        case ast.Constant(bool(value)):
            return str(not value)
        case ast.BoolOp(op, values) if not any_is(values, ast.BoolOp):
            word = " and "
            if isinstance(op, ast.And):
                word = " or "
            return word.join(negated(each, source) for each in values)
        case ast.Name() | ast.Attribute() | ast.Call() | ast.Subscript():
            return f"not {_joined(source(test))}"
    return f"not ({_joined(source(test))})"


def _joined(code: str) -> str:
    """Code on one line: what stood between brackets may have had several."""
    if "#" in code:
        return code
    return " ".join(code.split())
