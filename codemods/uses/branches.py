"""A test for sharded models whose branches become the same: one of them is left, without the test."""

import ast
import re

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import Refused, comments_between, indentation, is_alone
from fsdp_migrate.codemods.rule import Edit

_CLIP = {"torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad.clip_grad_norm_"}
# What a test may consist of that only looks.
_PURE = (
    *(ast.Name, ast.Attribute, ast.Constant, ast.Tuple, ast.expr_context),
    *(ast.BoolOp, ast.boolop, ast.UnaryOp, ast.unaryop, ast.Compare, ast.cmpop),
)


def clips_in_both(context: Context, branches: ast.AST) -> bool:
    """Whether both branches of an `if` clip a model's gradients alike, once `model.clip_grad_norm_(c)` is torch's function."""
    if not isinstance(branches, ast.If) or not _only_looks(branches.test):
        return False
    match branches.body, branches.orelse:
        case [ast.Expr(ast.Call() as own)], [ast.Expr(ast.Call() as other)]:
            if not isinstance(own.func, ast.Attribute) or own.func.attr != "clip_grad_norm_":
                return False
            given = [f"{ast.unparse(own.func.value)}.parameters()", *map(ast.unparse, own.args)]
            is_torch = bool(context.dotted(other.func) & _CLIP)
            is_same = given == [*map(ast.unparse, other.args)]
            is_same &= [*map(ast.unparse, own.keywords)] == [*map(ast.unparse, other.keywords)]
            return is_torch and is_same and _is_plain(context, branches)
    return False


def _only_looks(test: ast.expr) -> bool:
    """Whether a test has no effect but its answer: names, attributes, comparisons and `isinstance`."""
    match test:
        case ast.Call(ast.Name("isinstance"), arguments, []):
            return all(map(_only_looks, arguments))
    inside = ast.iter_child_nodes(test)
    return isinstance(test, _PURE) and all(
        _only_looks(each) for each in inside if isinstance(each, ast.expr)
    )


def _is_plain(context: Context, branches: ast.If) -> bool:
    """Whether an `if` has lines of its own and no comments, and is no `elif`."""
    file = context.file
    return (
        is_alone(file, branches)
        and is_alone(file, branches.orelse[0])
        and not context.source(branches).startswith("elif")
        and not comments_between(file, file.span(branches)[0], file.lines(branches)[1])
    )


def without_test(context: Context, branches: ast.If) -> Edit:
    """The edit that leaves the second branch in the place of both."""
    (other,) = branches.orelse
    file = context.file
    inner, outer = indentation(file, other), indentation(file, branches)
    source = context.source(other)
    if re.search(rf"\n(?!{re.escape(inner)})", source):
        raise Refused("its layout is unusual")
    return context.replace(branches, source.replace(f"\n{inner}", f"\n{outer}"))
