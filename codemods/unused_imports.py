"""Which imported names nothing uses, once edits have taken code away."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.exports import is_for_others
from fsdp_migrate.codemods.needed_imports import sees
from fsdp_migrate.facts.names import CLASS


def may_go(context: Context, name: ast.Name) -> bool:
    """Whether new code never uses a name that removed code did: one of FSDP1, from wherever it comes, and `partial`."""
    if name.id == "torch":  # what takes FSDP1's place is reached through it
        return False
    path: ast.AST = name
    while isinstance(path, ast.expr):
        if path in context.references:
            return True
        parent = context.file.parents[path]
        path = parent if isinstance(parent, ast.Attribute) else context.file.tree
    return any(dotted.split(".")[0] == "functools" for dotted in context.dotted(name))


def is_spent(context: Context, node: ast.AST, local: str, gone: Collection[ast.AST]) -> bool:
    """Whether edits took away every use of a name, and no other file imports it from here."""
    scope = context.file.scope_of(node)
    loads = [
        load for load in context.file.loads.get(local, ()) if sees(context, load, scope, local)
    ]
    if not loads or not all(load in gone and may_go(context, load) for load in loads):
        return False
    return scope is not context.file.scope or not is_for_others(context, local)


def spent_aliases(context: Context, gone: Collection[ast.AST]) -> Iterator[ast.stmt]:
    """The assignments `Sharded = FSDP` every use of which edits took away."""
    for node, name in context.references.items():
        statement = context.file.parents[node]
        if name == CLASS and isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            local = getattr(statement.targets[0], "id", "")
            loads = context.file.loads.get(local, ())
            if loads and all(load in gone for load in loads) and context.is_alone(statement):
                if not is_for_others(context, local):
                    yield statement
