"""Branches that the target release of torch never takes."""

from __future__ import annotations

import ast
import operator
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsdp_migrate.codemods.context import Context

_COMPARE = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_COMPARE_BY_SIGN = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)")


def dead_code(context: Context) -> set[ast.AST]:
    """The statements and expressions below a test of torch's version that every release from the target on fails.

    Only tests whose answer is the same for the target and all later releases count: `< 2.1` is never true from 2.8 on.
    """
    dead: set[ast.AST] = set()
    tests: list[ast.If | ast.IfExp] = [*context.file.of(ast.If), *context.file.of(ast.IfExp)]
    for node in tests:
        answer = _answer(context, node.test)
        if answer is None:
            continue
        branch = node.orelse if answer else node.body
        dead.update(branch if isinstance(branch, list) else [branch])
    return dead


def _answer(context: Context, test: ast.expr) -> bool | None:
    """What a test of torch's version gives from the target on; None for any other test."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _answer(context, test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        answers = [_answer(context, value) for value in test.values]
        deciding = isinstance(test.op, ast.Or)
        if deciding in answers:
            return deciding
        return None if None in answers else not deciding
    if isinstance(test, ast.Name):
        value = context.value(test)
        return (
            None
            if value is None or value.node is test or value.file is not context.file
            else _answer(context, value.node)
        )
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(context, test)
    if isinstance(test, ast.Call):
        return _asked(test)
    return None


def _compared(context: Context, test: ast.Compare) -> bool | None:
    compare = _COMPARE.get(type(test.ops[0]))
    version = _version(test.comparators[0])
    if compare is None or version is None or not _is_torchs_version(context, test.left):
        return None
    return _decided(compare, version, context.target)


def _asked(test: ast.Call) -> bool | None:
    """`is_torch_version(">=", "2.0")`, as accelerate and others have it."""
    name = getattr(test.func, "id", getattr(test.func, "attr", ""))
    if name != "is_torch_version" or len(test.args) != 2:
        return None
    sign, version = test.args[0], _version(test.args[1])
    if not isinstance(sign, ast.Constant) or version is None or sign.value not in _COMPARE_BY_SIGN:
        return None
    return _decided(_COMPARE_BY_SIGN[sign.value], version, (2, 8))


def _decided(compare: object, version: tuple[int, ...], target: tuple[int, ...]) -> bool | None:
    """The answer if it is the same for the target and every later release."""
    assert callable(compare)
    answers = {bool(compare(release, version)) for release in (target, (99,))}
    return answers.pop() if len(answers) == 1 else None


def _is_torchs_version(context: Context, expression: ast.expr) -> bool:
    """`torch.__version__`, also parsed, split or under a name."""
    if isinstance(expression, ast.Name):
        value = context.value(expression)
        return (
            value is not None
            and value.node is not expression
            and value.file is context.file
            and _is_torchs_version(context, value.node)
        )
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "__version__"
        and "torch.__version__" in context.dotted(node)
        for node in ast.walk(expression)
    )


def _version(expression: ast.expr) -> tuple[int, ...] | None:
    """The release that an expression names: `"2.1"`, `version.parse("2.1")`, `(2, 1)`."""
    if isinstance(expression, ast.Call) and len(expression.args) == 1:
        return _version(expression.args[0])
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        found = _VERSION.match(expression.value)
        return tuple(int(part) for part in found[1].split(".")) if found else None
    if isinstance(expression, ast.Tuple | ast.List):
        parts = [
            e.value
            for e in expression.elts
            if isinstance(e, ast.Constant) and isinstance(e.value, int)
        ]
        return tuple(parts) if len(parts) == len(expression.elts) and parts else None
    return None
