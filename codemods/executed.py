"""What a call runs: the functions of the project, and what they call in turn."""

from __future__ import annotations

import ast

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.index.module import Module
from fsdp_migrate.index.project import Definition

_DEPTH = 3


def definition_of(context: Context, module: Module, call: ast.Call) -> Definition | None:
    """The function of the project that a call runs: also a method of `self`, or of an object whose class is known."""
    made = context.project.definition(call.func, module)
    if made is not None or not isinstance(call.func, ast.Attribute):
        return made
    receiver = call.func.value
    owner = context.models.class_of(receiver, module)
    around = module.enclosing_class(call)
    if owner is None and around is not None and ast.unparse(receiver) == "self":
        owner = Definition(module, around)
    return context.project.method(owner, call.func.attr) if owner is not None else None


def functions_run(context: Context, module: Module, call: ast.Call) -> list[Definition]:
    """The functions of the project that a call runs, and those that they run in turn, each once."""
    found: dict[Definition, None] = {}
    edge = [(module, call)]
    for _ in range(_DEPTH):
        made = [definition_of(context, where, inner) for where, inner in edge]
        new = [f for f in made if f is not None and not isinstance(f.node, ast.ClassDef)]
        edge = [
            (function.module, inner)
            for function in dict.fromkeys(new)
            if function not in found
            for inner in ast.walk(function.node)
            if isinstance(inner, ast.Call)
        ]
        found |= dict.fromkeys(new)
    return list(found)
