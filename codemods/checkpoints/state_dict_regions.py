"""Where a context that is no plain `with` statement is in force: returned, assigned, chosen by a condition, or on a stack.

What stands in the `with` that enters it goes by its type. Where nobody sees who enters it, every state-dict call of its model
may go by it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fsdp_migrate.codemods.checkpoints.runtime_function import members
from fsdp_migrate.codemods.checkpoints.state_dict_reach import calls_of
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.index.models import Site
from fsdp_migrate.index.module import Module

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_STACKS = frozenset({"enter_context", "enter_async_context"})


@dataclass(eq=False)
class Region:
    """A context that sets a type from afar.

    Attributes:
        sites: the models concerned; empty if it is not known of which it speaks.
        statements: the `with` statements that enter it.
        lost: it may be entered elsewhere as well.
    """

    sites: frozenset[Site]
    statements: list[tuple[Module, ast.With]] = field(default_factory=list)
    lost: bool = False


def regions(contexts: Sequence[Context]) -> list[Region]:
    """The contexts of a project that set a type and are no plain `with` statement."""
    found = []
    for context in contexts:
        for attribute, call, sites in members(context, "state_dict_type"):
            region = Region(sites)
            parent = context.module.parents[call or attribute]
            if call is None:
                region.lost = True
            elif not isinstance(parent, ast.withitem):
                _follow(context, call, region, set())
            elif not _yields(context, parent, region):
                continue
            found.append(region)
    return found


def _yields(context: Context, item: ast.withitem, region: Region) -> bool:
    """Whether a function hands its caller the inside of a context: what `with function():` holds runs there."""
    statement = context.module.parents[item]
    function = context.module.enclosing_function(item)
    if not isinstance(statement, ast.With) or not isinstance(function, _FUNCTIONS):
        return False
    inside = (node for part in statement.body for node in ast.walk(part))
    if not any(isinstance(node, ast.Yield | ast.YieldFrom) for node in inside):
        return False
    _calls(context, function.name, region, set())
    return True


def _follow(context: Context, value: ast.expr, region: Region, seen: set[str]) -> None:
    """Notes what enters the context that an expression makes."""
    module = context.module
    parent = module.parents[value]
    while isinstance(parent, ast.IfExp | ast.BoolOp | ast.NamedExpr):
        value, parent = parent, module.parents[parent]
    if isinstance(parent, ast.withitem):
        statement = module.parents[parent]
        if isinstance(statement, ast.With):
            region.statements.append((module, statement))
            return
    elif isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute):
        if parent.func.attr in _STACKS and isinstance(parent.func.value, ast.Name):
            stack = _stack(module, parent, parent.func.value.id)
            if stack is not None:
                region.statements.append((module, stack))
                return
    elif isinstance(parent, ast.Return):
        function = module.enclosing_function(value)
        if isinstance(function, _FUNCTIONS):
            _calls(context, function.name, region, seen)
            return
    elif isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        target = parent.targets[0]
        if isinstance(target, ast.Name):
            _reads(context, target, region, seen)
            return
    region.lost = True


def _stack(module: Module, node: ast.AST, name: str) -> ast.With | None:
    """`with ExitStack() as name` around a node."""
    for parent in module.ancestors(node):
        if isinstance(parent, ast.With) and any(
            isinstance(item.optional_vars, ast.Name) and item.optional_vars.id == name
            for item in parent.items
        ):
            return parent
    return None


def _reads(context: Context, target: ast.Name, region: Region, seen: set[str]) -> None:
    module = context.module
    found = module.lookup(target.id, module.scope_of(target))
    for load in module.loads.get(target.id, ()):
        where = module.lookup(target.id, module.scope_of(load))
        if found is not None and where is not None and where[0] is found[0]:
            _follow(context, load, region, seen)


def _calls(context: Context, name: str, region: Region, seen: set[str]) -> None:
    """The calls of a function that gives the context, told by its name."""
    if name in seen:
        return
    seen.add(name)
    for module, call in calls_of(context.project, name):
        other = Context(module, context.project, context.models, context.plans)
        _follow(other, call, region, seen)


def around(region: Region, module: Module, node: ast.AST) -> bool:
    """Whether a node stands in a `with` that enters a context."""
    statements = {id(statement) for where, statement in region.statements if where is module}
    return any(id(parent) in statements for parent in module.ancestors(node))


def bodies(found: Sequence[Region]) -> Iterator[ast.With]:
    """The `with` statements that enter contexts."""
    for region in found:
        for _, statement in region.statements:
            yield statement
