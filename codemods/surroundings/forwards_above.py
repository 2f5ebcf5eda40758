"""Whether a model has been run above a place, and no backward has followed: in the same function, or above its calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.executed import definition_of, functions_run
from fsdp_migrate.codemods.surroundings.parameters import Held
from fsdp_migrate.index.models import Site
from fsdp_migrate.index.module import FunctionNode, Module, Parameter
from fsdp_migrate.index.order import after
from fsdp_migrate.index.project import Definition

_DEPTH = 3
_RUNNING = frozenset({"generate", "forward"})


def forward_above(context: Context, module: Module, node: ast.AST, held: Held, depth: int) -> int:
    """The line of a forward of the models that no backward follows, above a node or above a call of its function; 0 if none."""
    function = module.enclosing_function(node)
    found = 0
    for call in sorted(module.calls, key=_end):
        if module.enclosing_function(call) is not function or not after(node, call):
            continue
        run = [call, *_calls_in(functions_run(context, module, call))]
        if any(_is_backward(inner) for inner in run):
            found = 0
        elif any(_is_forward(context, inner, held.sites) for inner in run):
            found = call.lineno
    if found or function is None or depth >= _DEPTH or not _comes_in(held):
        return found
    for where, caller in _callers(context, module, function):
        found = forward_above(context, where, caller, held, depth + 1)
        if found:
            return found
    return 0


def _comes_in(held: Held) -> bool:
    """Whether the model comes from outside of a function: another call of one that makes a model makes another."""
    root = held.origin
    while isinstance(root, ast.Attribute | ast.Call | ast.Subscript):
        root = root.func if isinstance(root, ast.Call) else root.value
    if not isinstance(root, ast.Name):
        return False
    found = held.module.lookup(root.id, held.module.scope_of(root))
    return found is None or all(isinstance(binding, Parameter) for binding in found[1])


def _callers(
    context: Context, module: Module, function: FunctionNode
) -> Iterator[tuple[Module, ast.Call]]:
    """The calls of a function; of a method, those on objects whose class is known as well."""
    known = context.models.callers_of(function)
    yield from known
    if not isinstance(function, ast.Lambda) and isinstance(module.parents[function], ast.ClassDef):
        for where in context.project.connected(module):
            for call in where.calls:
                if isinstance(call.func, ast.Attribute) and call.func.attr == function.name:
                    made = definition_of(context, where, call)
                    if made is not None and made.node is function and (where, call) not in known:
                        yield where, call


def _end(call: ast.Call) -> tuple[int, int]:
    """Where a call ends: in `model(x).backward()` the backward comes last."""
    return call.end_lineno or 0, call.end_col_offset or 0


def _calls_in(functions: list[Definition]) -> Iterator[ast.Call]:
    for function in functions:
        yield from (node for node in ast.walk(function.node) if isinstance(node, ast.Call))


def _is_backward(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "backward"


def _is_forward(context: Context, call: ast.Call, sites: frozenset[Site]) -> bool:
    """Whether a call is one of the models, or of their `generate`."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr in _RUNNING:
        if context.models.sites(function.value) & sites:
            return True
    return not isinstance(function, ast.Call) and bool(context.models.sites(function) & sites)
