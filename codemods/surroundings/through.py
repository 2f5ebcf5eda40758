"""The edit that gives an expression to a function: `p.grad` becomes `local_shard(p.grad)`."""

from __future__ import annotations

import ast

import libcst as cst

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Edit, Edited

_KINDS: dict[type[ast.expr], type[cst.CSTNode]] = {
    ast.Attribute: cst.Attribute,
    ast.Call: cst.Call,
    ast.List: cst.List,
    ast.ListComp: cst.ListComp,
    ast.Name: cst.Name,
    ast.Subscript: cst.Subscript,
}


def through(context: Context, node: ast.expr, function: str) -> Edit | None:
    """The edit; None where an expression is of another kind, such as the bare generator of a call."""
    kind = _KINDS.get(type(node))
    if kind is None:
        return None

    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.BaseExpression)
        return Edited(cst.Call(cst.parse_expression(function), [cst.Arg(updated)]))

    return Edit(context.syntax.find(node, kind), apply)
