"""The names that statements read and bind, dotted: `self.optimizer` as well as `optimizer`."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from fsdp_migrate.codemods.expressions import dotted
from fsdp_migrate.codemods.optimizers.kept_parameters import FILLING
from fsdp_migrate.index.module import Module

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, eq=False)
class Names:
    """The dotted names that a statement reads and binds."""

    reads: frozenset[str]
    binds: frozenset[str]


def names_in(module: Module, statement: ast.stmt) -> Names:
    """The names that a statement reads and binds, with all that is inside of it."""
    reads: set[str] = set()
    binds: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name | ast.Attribute) and not _is_link(module, node):
            name = dotted(node)
            (reads if isinstance(node.ctx, ast.Load) else binds).add(name)
        elif isinstance(node, DEFINITIONS):
            binds.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            binds |= {(a.asname or a.name).split(".")[0] for a in node.names}
    binds |= filled([statement])
    inner = _inner_names(statement)
    return Names(_without(reads, inner), _without(binds, inner))


def _is_link(module: Module, node: ast.AST) -> bool:
    """Whether a name is only a part of a dotted one."""
    parent = module.parents[node]
    return isinstance(parent, ast.Attribute) and isinstance(node, ast.Name | ast.Attribute)


def _inner_names(statement: ast.AST) -> set[str]:
    """The names that comprehensions, lambdas and the arguments of functions bind for themselves."""
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.comprehension):
            names |= {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.Lambda):
            names |= {argument.arg for argument in node.args.args}
    return names


def _without(names: set[str], inner: set[str]) -> frozenset[str]:
    return frozenset(name for name in names if name.split(".")[0] not in inner)


def filled(statements: Iterable[ast.stmt]) -> set[str]:
    """The names of containers that statements add to."""
    names: set[str] = set()
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr in FILLING:
                    names |= containers(node.func.value)
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                names |= containers(node.value)
            elif isinstance(node, ast.AugAssign):
                names |= containers(node.target)
    return names


def containers(target: ast.expr) -> set[str]:
    """The containers that an expression can be: both of `(a if x else b)`."""
    if isinstance(target, ast.IfExp):
        return containers(target.body) | containers(target.orelse)
    return {dotted(target)} - {""}


def meet(some: set[str] | frozenset[str], others: set[str] | frozenset[str]) -> bool:
    """Whether two sets of dotted names speak of one object: `args` and `args.lr`."""
    return any(
        one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
        for one in some
        for other in others
    )


def loop_names(statement: ast.stmt) -> set[str]:
    """The names that the loops of a statement bind, one element after another."""
    return {
        name.id
        for node in ast.walk(statement)
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension)
        for name in ast.walk(node.target)
        if isinstance(name, ast.Name)
    }
