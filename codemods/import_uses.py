"""Who still goes through an import, once the edits of the other codemods are done."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import TypeGuard

from fsdp_migrate.codemods import tensor_parallel
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.index.module import Binding, Imported, Opaque, Scope
from fsdp_migrate.index.names import PACKAGE, fsdp1_name, is_private

_CHECKPOINT = ("torch.distributed.checkpoint", "torch.distributed._shard.checkpoint")
_RESPELLED = frozenset({"FullyShardedDataParallel", "MixedPrecision", "CPUOffload"})


def used_imports(context: Context, gone: Collection[ast.AST]) -> set[Imported]:
    """The imports that a reference, a `del`, an annotation in quotes or code in a string still goes through."""
    module = context.module
    used: set[Imported] = set()
    for name, loads in module.loads.items():
        for load in loads:
            if load in gone or any(parent in gone for parent in dotted_around(context, load)):
                continue
            used |= imports_behind(context, name, module.scope_of(load))
    for string, code in [*module.quoted, *module.executed]:
        if string not in gone:
            for node in ast.walk(code):
                if isinstance(node, ast.Name):
                    used |= imports_behind(context, node.id, module.scope_of(string))
    for scope in module.scopes.values():
        for name, bindings in scope.bindings.items():
            if any(isinstance(b, Opaque) and isinstance(b.node, ast.Delete) for b in bindings):
                used |= imports_behind(context, name, scope)
    return used


def imports_behind(context: Context, name: str, scope: Scope) -> set[Imported]:
    found = context.module.lookup(name, scope)
    return {binding for binding in found[1] if isinstance(binding, Imported)} if found else set()


def is_package(binding: Binding) -> TypeGuard[Imported]:
    """Whether an import binds FSDP1's package or a module of it."""
    if not isinstance(binding, Imported):
        return False
    if binding.member is None:
        return binding.alias.name.startswith(PACKAGE)
    path = f"{binding.module}.{binding.member}"
    return path.startswith(PACKAGE) and fsdp1_name(path) is None


def root_of(expression: ast.expr) -> ast.Name | None:
    """The name that a dotted name begins with."""
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    return expression if isinstance(expression, ast.Name) else None


def is_respelled(context: Context, load: ast.Name, elsewhere: Collection[ast.expr | None]) -> bool:
    """Whether FSDP2's name is written through the same module as FSDP1's was: `fsdp.fully_shard`."""
    name = context.module.parents[load]
    return (
        isinstance(name, ast.Attribute)
        and name not in elsewhere
        and context.project.dotted(load, context.module) == {PACKAGE}
        and context.fsdp1(name) in _RESPELLED
    )


def is_spare(context: Context, binding: Imported) -> bool:
    """Whether an import can go with its last use: of torch's and `functools`, of files that only define something."""
    whole = isinstance(binding.statement, ast.Import) and binding.alias.asname is not None
    if (
        binding.module == "functools"
        or binding.module.startswith(_CHECKPOINT)
        or (whole and binding.module.startswith(PACKAGE))
    ):
        return True
    path = f"{binding.module}.{binding.member}"
    if binding.member is not None and is_private(path):
        return path not in tensor_parallel.NAMES  # those go with their whole statement
    if isinstance(binding.statement, ast.Import) and not whole and "." in binding.module:
        return False  # `import package.module` binds the package, as others may
    read = [
        found
        for found in context.project.imported_by(binding.statement, context.module)
        if found.name.rpartition(".")[2] in {*binding.module.split("."), binding.member}
    ]
    return bool(read) and all(_only_defines(found.tree) for found in read)


def _only_defines(tree: ast.Module) -> bool:
    """Whether a file's top level calls nothing for what the call does."""
    return not any(
        isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Constant)
        for statement in tree.body
    )


def dotted_around(context: Context, load: ast.expr) -> Iterator[ast.expr]:
    """The longer dotted names that a name begins: `fsdp.wrap` and `fsdp.wrap.wrap` for `fsdp`."""
    for parent in context.module.ancestors(load):
        if not isinstance(parent, ast.Attribute):
            return
        yield parent


def exported(context: Context) -> set[object]:
    """The names in `__all__`, however it is put together."""
    return {
        node.value
        for statement in context.module.tree.body
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and any(isinstance(n, ast.Name) and n.id == "__all__" for n in ast.walk(statement))
        for node in ast.walk(statement)
        if isinstance(node, ast.Constant)
    }
