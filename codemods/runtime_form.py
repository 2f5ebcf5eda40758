"""The runtime form of a constructor call: `shard_model(...)`, with FSDP1's arguments as they stand."""

from __future__ import annotations

import ast

from fsdp_migrate.codemods.constructor_call import FORMER_NAMES
from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.edit.arguments import ArgumentEdits
from fsdp_migrate.codemods.plan import Form, Plan
from fsdp_migrate.codemods.rule import Edit


def runtime_form(context: Context, planned: Plan) -> Form:
    """The call as one of `shard_model`; arguments that mean nothing under FSDP2 go away."""
    constructor = planned.constructor
    name, needs = context.name(RUNTIME, "shard_model", constructor.call.func)
    gone: list[ast.AST] = [constructor.call.func]
    for argument_name, translation in planned.translations.items():
        argument = constructor.arguments.get(argument_name)
        if argument is not None and not translation.in_runtime:
            gone.append(argument.value)
    edit = _edit(context, planned, name)
    return Form(edits=(edit,), needs=needs, gone=tuple(gone))


def _edit(context: Context, planned: Plan, function: str) -> Edit:
    constructor = planned.constructor
    drop, rename = set(), {}
    for name, argument in constructor.arguments.items():
        translation = planned.translations.get(name)
        if translation is not None and not translation.in_runtime:
            drop.add(constructor.position(argument))
        elif isinstance(argument.node, ast.keyword) and argument.node.arg in FORMER_NAMES:
            rename[constructor.position(argument)] = name
    positional = [a for a in constructor.arguments.values() if not isinstance(a.node, ast.keyword)]
    if any(constructor.position(argument) in drop for argument in positional):
        rename |= {
            a.index: a.name for a in positional if a.index not in drop and a.name != "module"
        }
    edits = ArgumentEdits(drop=frozenset(drop), rename=rename)
    return context.edit_call(constructor.call, edits, function)
