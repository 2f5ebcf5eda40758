"""Which import statement takes each name that edits need."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.import_change import ImportChange
from fsdp_migrate.codemods.rule import Import
from fsdp_migrate.facts.names import RUNTIME, TORCH
from fsdp_migrate.facts.scopes import Imported, Scope


def hand_out(
    context: Context, statements: list[ImportChange], needed: Iterable[Import]
) -> list[tuple[str, str]]:
    """Gives each needed name to an import statement; returns those for which there is none."""
    insert: list[tuple[str, str]] = []
    for need in dict.fromkeys(needed):
        if _is_imported(context, need):
            continue
        statement = None
        if need.name:
            statement = _importing(context, statements, need) or _statement_for(
                context, statements, need
            )
        if statement is None:
            insert.append((need.module, need.name))
        else:
            statement.add.append((need.module, need.name))
    return list(dict.fromkeys(insert))


def _importing(
    context: Context, statements: list[ImportChange], need: Import
) -> ImportChange | None:
    """The statement among the file's leading imports that imports from the same module of another package."""
    if need.module.startswith((TORCH, RUNTIME)):
        return None
    for node in context.file.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == need.module and not node.level:
            known = [statement for statement in statements if statement.node is node]
            if not known and node.names[0].name != "*":
                known = [ImportChange(node)]
                statements += known
            return known[0] if known else None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return None  # what is defined here may run before a later import
    return None


def _is_imported(context: Context, need: Import) -> bool:
    """Whether the top of the file imports the name already."""
    name, _, local = need.name.partition(" as ")
    wanted = local or name or need.module.split(".")[0]
    member = name or None
    for binding in context.file.scope.bindings.get(wanted, ()):
        if isinstance(binding, Imported) and binding.member == member:
            source = binding.module if member else binding.alias.name
            if source == need.module and binding.statement in context.file.tree.body:
                return True
    return False


def _statement_for(
    context: Context, statements: list[ImportChange], need: Import
) -> ImportChange | None:
    """The statement that imported what the name replaces, else one at the top of the file that imports from FSDP1."""
    from_torch = [
        s for s in statements if isinstance(s.node, ast.ImportFrom) and "*" not in s.locals
    ]
    if isinstance(need.at, ast.expr):
        root = root_of(need.at)
        for statement in from_torch:
            if root is not None and root.id in statement.locals:
                if sees(context, root, context.file.scope_of(statement.node), root.id):
                    return _beside(context, from_torch, statement, need.module)
    at_top = [s for s in from_torch if context.file.parents[s.node] is context.file.tree]
    same = [
        s for s in at_top if isinstance(s.node, ast.ImportFrom) and s.node.module == need.module
    ]
    if same:
        return same[0]
    related = need.module.startswith((TORCH, RUNTIME))
    return at_top[0] if at_top and related else None


def _beside(
    context: Context, statements: list[ImportChange], statement: ImportChange, module: str
) -> ImportChange:
    """The statement above it, in the same block, that takes names of the module already; else the statement itself."""
    block = context.file.parents[statement.node]
    for other in statements:
        taken = {source for source, _ in other.add}
        above = other.node.lineno <= statement.node.lineno
        if module in taken and above and context.file.parents[other.node] is block:
            return other
    return statement


def root_of(node: ast.expr) -> ast.Name | None:
    """The name that a dotted name begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def sees(context: Context, load: ast.Name, scope: Scope, local: str) -> bool:
    """Whether a name that is read is the one that a scope binds."""
    found = context.file.scope_of(load).lookup(local)
    return found is not None and found[0] is scope
