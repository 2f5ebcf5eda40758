"""Where the result of `FSDP.optim_state_dict_to_load(...)` goes: into `optimizer.load_state_dict`, and nowhere else?"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import dotted, is_dotted
from fsdp_migrate.index.order import after, block_of, share_a_loop


@dataclass(frozen=True, eq=False)
class Loading:
    """How states come into an optimizer.

    Attributes:
        nested: `optimizer.load_state_dict(call)`.
        assignment, load: `name = call`, and further down `optimizer.load_state_dict(name)`.
    """

    optimizer: ast.expr
    nested: ast.Call | None = None
    assignment: ast.stmt | None = None
    load: ast.stmt | None = None


def loading(context: Context, call: ast.Call, given: Mapping[str, ast.expr]) -> Loading | None:
    """How the result of a call is loaded; None if anything else is done with it."""
    optimizer = given.get("optim")
    parent = context.module.parents[call]
    directly = given.get("load_directly")
    if directly is not None:
        if isinstance(directly, ast.Constant) and directly.value is True:
            return Loading(optimizer) if isinstance(parent, ast.Expr) and optimizer else None
        if not isinstance(directly, ast.Constant):
            return None
    if isinstance(parent, ast.keyword):
        parent = context.module.parents[parent]
    if isinstance(parent, ast.Call):
        taker = _taker(context, parent, optimizer)
        return None if taker is None else Loading(taker, nested=parent)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        target = parent.targets[0]
        if isinstance(target, ast.Name) and context.stands_alone(parent):
            return _named(context, parent, target, optimizer)
    return None


def _taker(context: Context, call: ast.Call, optimizer: ast.expr | None) -> ast.expr | None:
    """The optimizer of `optimizer.load_state_dict(...)`, a statement, if it is the one that is meant."""
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr != "load_state_dict":
        return None
    alone = len(call.args) + len(call.keywords) == 1
    if not alone or not isinstance(context.module.parents[call], ast.Expr):
        return None
    receiver = function.value
    if not is_dotted(receiver) or context.sites(receiver):
        return None
    if optimizer is not None and ast.unparse(optimizer) != ast.unparse(receiver):
        return None
    return receiver


def _named(
    context: Context, assignment: ast.Assign, target: ast.Name, optimizer: ast.expr | None
) -> Loading | None:
    """The load of a result that has a name, where the statement comes after the assignment whatever happens."""
    module = context.module
    found = module.lookup(target.id, module.scope_of(target))
    if found is None or module.enclosing_function(target) is not _function(found[0].node):
        return None
    reads = [
        load
        for load in module.loads.get(target.id, ())
        if (where := module.lookup(target.id, module.scope_of(load))) and where[0] is found[0]
    ]
    behind = [load for load in reads if after(load, assignment)]
    before = [load for load in reads if load not in behind]
    inside = set(ast.walk(assignment))
    if len(behind) != 1 or any(
        share_a_loop(module, assignment, load) for load in before if load not in inside
    ):
        return None
    call = module.parents[behind[0]]
    if isinstance(call, ast.keyword):
        call = module.parents[call]
    if not isinstance(call, ast.Call) or module.enclosing_function(call) is not (
        module.enclosing_function(assignment)
    ):
        return None
    taker = _taker(context, call, optimizer)
    load = module.parents[call]
    if taker is None or not isinstance(load, ast.stmt) or not context.stands_alone(load):
        return None
    between = _between(context, assignment, load)
    if between is None or any(_touches(statement, taker) for statement in between):
        return None
    return Loading(taker, assignment=assignment, load=load)


def _function(scope: ast.AST) -> ast.AST | None:
    return None if isinstance(scope, ast.Module) else scope


def _between(context: Context, first: ast.stmt, last: ast.stmt) -> list[ast.stmt] | None:
    """The statements from one to another that follows it whatever happens; None where it may not."""
    here: ast.stmt = first
    found: list[ast.stmt] = []
    while True:
        parent = context.module.parents[here]
        block = block_of(parent, here)
        start = block.index(here) + 1
        if last in block:
            return [*found, *block[start : block.index(last)]]
        if not isinstance(parent, ast.With):
            return None
        found += block[start:]
        here = parent


def _touches(statement: ast.stmt, optimizer: ast.expr) -> bool:
    """Whether a statement may leave, or has to do with the optimizer."""
    root = dotted(optimizer)
    return any(
        isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue)
        or (isinstance(node, ast.Name | ast.Attribute) and dotted(node) == root)
        for node in ast.walk(statement)
    )
