"""Where a model becomes sharded: at its constructor, and wherever a function is called that has it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import given_for
from fsdp_migrate.codemods.plan import Plan
from fsdp_migrate.index.module import Module, Parameter

_DEPTH = 3


@dataclass(frozen=True, eq=False)
class Place:
    """Where a model, known by an expression, becomes sharded: the constructor, or a call of a function that has it.

    Attributes:
        function: the function that is called; None at the constructor itself.
    """

    plan: Plan
    module: Module
    call: ast.Call
    model: ast.expr
    function: ast.AST | None = None


def places(context: Context, plan: Plan) -> Iterator[Place]:
    """The places of one file where the model of a constructor, of this file or another, becomes sharded."""
    constructor = plan.constructor
    if constructor.model is None:
        return
    module = constructor.context.module
    first = Place(plan, module, constructor.call, constructor.model)
    for place in _outwards(context, first, 0):
        if place.module is context.module:
            yield place


def _outwards(context: Context, place: Place, depth: int) -> Iterator[Place]:
    """The place itself, and the calls of a function that shards what it is given."""
    yield place
    module, model = place.module, place.model
    function = module.enclosing_function(place.call)
    if depth > _DEPTH or function is None or not isinstance(model, ast.Name):
        return
    found = module.lookup(model.id, module.scope_of(model))
    for binding in found[1] if found else ():
        if isinstance(binding, Parameter) and binding.function is function:
            for where, caller in context.models.callers_of(function):
                given = given_for(caller, model.id, binding.position)
                if given is not None:
                    outer = Place(place.plan, where, caller, given, function)
                    yield from _outwards(context, outer, depth + 1)
