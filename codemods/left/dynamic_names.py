"""FSDP1 reached by a string: `import_module("torch.distributed.fsdp")`, `patch("torch.distributed.fsdp...")`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.facts.names import RUNTIME, TORCH, fsdp1_name, is_module
from fsdp_migrate.findings import Action

RULE = Rule("FSDP010", "dynamic-name", "an FSDP1 path in a string becomes the runtime's")
RULES = (RULE,)

_IMPORTING = frozenset({"import_module", "__import__"})
_PATCHING = frozenset({"patch", "resolve_name"})


def find(context: Context) -> Iterator[Found]:
    """Strings in calls that name FSDP1 by its path."""
    if TORCH not in context.file.text and RUNTIME not in context.file.text:
        return
    for constant in context.file.of(ast.Constant):
        path, user = constant.value, context.file.parents[constant]
        if not isinstance(path, str):
            continue
        name = fsdp1_name(path)
        function = last_name(user.func) if isinstance(user, ast.Call) else ""
        imported = is_module(path.replace(RUNTIME, TORCH, 1)) and function in _IMPORTING
        if imported or (name and function in _PATCHING):
            yield _moved(context, constant, path)
        elif name and path.startswith(TORCH) and _is_handed_on(constant, user):
            message = f"may give torch's FSDP1: {RUNTIME}.{name} is the class on FSDP2"
            yield Found(RULE, constant, Action.MANUAL, message)


def _is_handed_on(constant: ast.Constant, user: ast.AST) -> bool:
    """Whether a string goes to code that may import what it names: an argument, or a value of a dictionary."""
    return isinstance(user, ast.Call) or (isinstance(user, ast.Dict) and constant in user.values)


def _moved(context: Context, constant: ast.Constant, path: str) -> Found:
    code = context.source(constant).replace(TORCH, RUNTIME)
    message = f"becomes a name of {RUNTIME}"
    edits = (lambda: [context.replace(constant, code)]) if path.startswith(TORCH) else None
    return Found(RULE, constant, Action.RUNTIME, message, edits=edits)
