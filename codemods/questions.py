"""Whether a test only asks: nothing comes of it but its answer."""

import ast
import re

from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.program import Definition, Program

_ASKS = re.compile(r"(is|has)_")
# What a test may consist of that only looks.
_PURE = (
    *(ast.Name, ast.Attribute, ast.Constant, ast.Tuple, ast.expr_context),
    *(ast.BoolOp, ast.boolop, ast.UnaryOp, ast.unaryop, ast.Compare, ast.cmpop),
)


def only_looks(test: ast.expr) -> bool:
    """Whether a test has no effect but its answer: names, attributes, comparisons and `isinstance`."""
    match test:
        case ast.Call(ast.Name("isinstance"), arguments, []):
            return all(map(only_looks, arguments))
    inside = ast.iter_child_nodes(test)
    return isinstance(test, _PURE) and all(
        only_looks(each) for each in inside if isinstance(each, ast.expr)
    )


def only_asks(program: Program, file: File, test: ast.expr) -> bool:
    """Whether a test only looks, or calls what only answers: `is_available()`, and functions of the program that only look."""
    match test:
        case ast.Call(ast.Name("isinstance")):
            return only_looks(test)
        case ast.Call(function, arguments, []):
            is_answer = not arguments and _ASKS.match(last_name(function)) is not None
            is_answer = is_answer or _only_answers(program, file, function)
            return is_answer and all(map(only_looks, arguments))
        case ast.BoolOp() | ast.UnaryOp() | ast.Compare():
            parts = [each for each in ast.iter_child_nodes(test) if isinstance(each, ast.expr)]
            return all(only_asks(program, file, each) for each in parts)
    return only_looks(test)


def _only_answers(program: Program, file: File, function: ast.expr) -> bool:
    """Whether a function of the program does nothing but compare and return."""
    match program.definition(function, file):
        case Definition(node=ast.FunctionDef(decorator_list=[]) as made):
            statements = [node for node in ast.walk(made) if isinstance(node, ast.stmt)]
        case _:
            return False
    for node in statements[1:]:
        match node:
            case ast.If(test) | ast.Return(ast.expr() as test) | ast.Expr(ast.Constant() as test):
                if not only_looks(test):
                    return False
            case _:
                return False
    return True
