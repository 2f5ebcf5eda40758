"""Which code one rank alone runs: behind `if rank == 0:`, in its `else`, or after the others have left."""

from __future__ import annotations

import ast
import re

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.index.order import block_of, leaves
from fsdp_migrate.index.values import origin

_RANK = re.compile(r"(?<![a-z])(local_|global_|dp_|world_)?rank\b|get_rank\(\)|get_node_local_rank")
_FIRST = re.compile(
    r"is_(main|global_zero|master|local_main|first|rank_zero)|is_rank0|is_rank_0|rank_zero"
)


def guard(context: Context, node: ast.AST, *, certain: bool = False) -> ast.expr | None:
    """The condition by which one rank alone runs a node, inside of its function; None if there is none.

    Args:
        certain: whether the rank must be `torch.distributed.get_rank()`; else its name will do.
    """
    child = node
    for parent in context.module.ancestors(node):
        if isinstance(parent, ast.If) and child is not parent.test:
            if child in parent.body and is_first(context, parent.test, certain=certain):
                return parent.test
            if child in parent.orelse and _is_other(context, parent.test, certain):
                return parent.test
        if isinstance(child, ast.stmt):
            block = block_of(parent, child)
            for before in block[: block.index(child)] if block else ():
                if isinstance(before, ast.If) and leaves(before.body):
                    if _is_other(context, before.test, certain):
                        return before.test
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return None
        child = parent
    return None


def is_first(context: Context, test: ast.expr, *, certain: bool = False) -> bool:
    """`rank == 0`, `dist.get_rank() == 0`, `is_main_process`, also as one of several conditions."""
    if isinstance(test, ast.BoolOp):
        return isinstance(test.op, ast.And) and any(
            is_first(context, value, certain=certain) for value in test.values
        )
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_rank(context, test.operand, certain)
    if isinstance(test, ast.Compare):
        return _compares(context, test, ast.Eq, certain)
    return not certain and bool(_FIRST.search(ast.unparse(test)))


def _is_other(context: Context, test: ast.expr, certain: bool) -> bool:
    """`rank != 0`, `not is_main_process`, `rank`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        operand = test.operand
        return not isinstance(operand, ast.BoolOp) and is_first(context, operand, certain=certain)
    if isinstance(test, ast.Compare):
        return any(_compares(context, test, kind, certain) for kind in (ast.NotEq, ast.Gt))
    return _is_rank(context, test, certain)


def _compares(context: Context, test: ast.Compare, kind: type[ast.cmpop], certain: bool) -> bool:
    """Whether a rank is compared with 0, which may stand in front of `==` and `!=` as well."""
    if len(test.ops) != 1 or not isinstance(test.ops[0], kind):
        return False
    sides = [test.left, test.comparators[0]]
    if kind is not ast.Gt and isinstance(test.left, ast.Constant):
        sides.reverse()
    rank, zero = sides
    return isinstance(zero, ast.Constant) and zero.value == 0 and _is_rank(context, rank, certain)


def _is_rank(context: Context, expression: ast.expr, certain: bool) -> bool:
    made = origin(context.project, expression, context.module)
    if made is not None and isinstance(made.node, ast.Call) and not made.node.args:
        if context.project.dotted(made.node.func, made.module) == {"torch.distributed.get_rank"}:
            return True
    if certain or not isinstance(expression, ast.Name | ast.Attribute | ast.Call):
        return False
    text = ast.unparse(expression).lower()
    return bool(_RANK.search(text)) and "tp_rank" not in text and "pp_rank" not in text
