"""What a reference to a class is for where it stands: a test, an annotation, or the question whether it was imported."""

from __future__ import annotations

import ast

from fsdp_migrate.codemods.context import Context


def asks_for_none(context: Context, reference: ast.expr) -> bool:
    """Whether a reference is only asked whether it was imported: `FSDP is not None`."""
    parent = context.module.parents[reference]
    return (
        isinstance(parent, ast.Compare)
        and len(parent.comparators) == 1
        and any(
            isinstance(side, ast.Constant) and side.value is None
            for side in (parent.left, parent.comparators[0])
        )
    )


def is_truth(context: Context, reference: ast.expr) -> bool:
    """Whether only the truth of a reference counts, which is that of its import: `if FSDP and ...:`, `not FSDP`."""
    node: ast.AST = reference
    parent = context.module.parents[node]
    while isinstance(parent, ast.BoolOp):
        node, parent = parent, context.module.parents[parent]
    if isinstance(parent, ast.UnaryOp):
        return isinstance(parent.op, ast.Not)
    if isinstance(parent, ast.comprehension):
        return node in parent.ifs
    return isinstance(parent, ast.If | ast.IfExp | ast.While | ast.Assert) and parent.test is node


def is_test(context: Context, reference: ast.expr) -> bool:
    """Whether a reference is the class, or one of the classes, of an isinstance or issubclass test, or of `case FSDP():`."""
    node: ast.AST = reference
    parent = context.module.parents[node]
    if isinstance(parent, ast.MatchClass):
        return not (parent.patterns or parent.kwd_patterns)
    while isinstance(parent, ast.Tuple) or (
        isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.BitOr)
    ):
        node, parent = parent, context.module.parents[parent]
    return (
        isinstance(parent, ast.Call)
        and isinstance(parent.func, ast.Name)
        and parent.func.id in {"isinstance", "issubclass"}
        and len(parent.args) == 2
        and parent.args[1] is node
    )


def is_annotation(context: Context, reference: ast.expr) -> bool:
    """Whether a reference is a part of an annotation."""
    node: ast.AST = reference
    for parent in context.module.ancestors(reference):
        if isinstance(parent, ast.arg | ast.AnnAssign) and parent.annotation is node:
            return True
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and parent.returns is node:
            return True
        if not isinstance(parent, ast.expr) or isinstance(parent, ast.Call):
            return False
        node = parent
    return False
