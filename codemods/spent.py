"""Assignments whose names only code that goes away has read: `policy = ModuleWrapPolicy({Block})`."""

from __future__ import annotations

import ast
from collections.abc import Collection

from fsdp_migrate.codemods.context import Context, shortened
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.findings import Action


def removal(context: Context, rule: Rule, statement: ast.stmt, why: str) -> Found:
    """The finding that takes such a statement away."""
    return Found(
        rule,
        statement,
        Action.REWRITE,
        f"is removed: {why}",
        shortened(context.source(statement)),
        edits=lambda: [context.remove(statement)],
        removed=(statement,),
    )


def spent(
    context: Context, gone: Collection[ast.AST], written: Collection[str] = ()
) -> list[ast.stmt]:
    """Those that only give values, by all the code that goes.

    Args:
        written: the names that the new code reads.
    """
    nodes = {node for each in gone for node in ast.walk(each)}
    names = [node for node in nodes if isinstance(node, ast.Name) and node.id not in written]
    found: dict[ast.stmt, None] = {}
    while names:
        name = names.pop()
        variable = context.file.variable(name)
        if variable is None or not all(read in nodes for read in context.file.reads(name)):
            continue
        if len(variable.assigned) != len(variable.bindings):
            continue
        statements = [context.removable(each) for each in variable.assigned]
        pure = all(is_pure(context, each.value) for each in variable.assigned)
        if pure and None not in statements:
            for each in variable.assigned:
                found[context.file.statement(each.target)] = None
                inside = set(ast.walk(each.value)) - nodes
                nodes |= inside
                names += [
                    node for node in inside if isinstance(node, ast.Name) and node.id not in written
                ]
    return list(found)


def is_pure(context: Context, value: ast.AST) -> bool:
    """Whether an expression only gives a value: calls of options, policies and devices, no assignment and no `await`."""
    if isinstance(value, ast.Lambda):
        return True
    if isinstance(value, ast.Await | ast.NamedExpr | ast.Yield | ast.YieldFrom):
        return False
    if isinstance(value, ast.Call) and not _only_makes(context, value.func):
        return False
    return all(is_pure(context, child) for child in ast.iter_child_nodes(value))


def _only_makes(context: Context, function: ast.expr) -> bool:
    if context.fsdp1(function) is not None:
        return True
    dotted = context.dotted(function)
    if dotted:
        return dotted <= {"functools.partial", "torch.device", "torch.cuda.current_device"}
    name = getattr(function, "id", "")
    return name in {"set", "tuple", "list", "int"} and not context.program.definition(
        function, context.file
    )
