"""`@torch.inference_mode()` around a state dict: torch's functions for state dicts raise in it."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found
from fsdp_migrate.codemods.uses.state_dicts import CONTEXT
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.findings import Action

_MODE = "torch.inference_mode"
_MESSAGE = (
    "Replaced by `torch.no_grad`: the state dict of a sharded model raises in inference mode "
    '("Cannot set version_counter for inference tensor").'
)


@codemod(words=("inference_mode",))
def find(context: Context) -> Iterator[Found]:
    """Each `torch.inference_mode()` around a state dict of a model of FSDP1."""
    if not context.in_place:
        return
    for mode in context.file.attributes.get("inference_mode", ()):
        call = context.call_of(mode)
        if call is None or call.args or call.keywords or context.dotted(mode) != {_MODE}:
            continue
        if any(_asks_for_state_dict(context, node) for node in _inside(context, call)):
            yield _without_gradients(context, call, mode)


def _without_gradients(context: Context, call: ast.Call, mode: ast.Attribute) -> Found:
    code = f"{context.source(mode.value)}.no_grad()"
    edits = lambda: [context.replace(call, code)]  # noqa: E731
    return Found(CONTEXT, call, Action.REWRITE, _MESSAGE, edits=edits)


def _inside(context: Context, call: ast.Call) -> Iterator[ast.AST]:
    """The code that runs in the mode: of a function that it decorates, or of a block."""
    around = context.file.parents[call]
    if isinstance(around, ast.withitem):
        around = context.file.parents[around]
    match around:
        case ast.FunctionDef() | ast.With():
            for statement in around.body:
                yield from ast.walk(statement)


def _asks_for_state_dict(context: Context, node: ast.AST) -> bool:
    match node:
        case ast.Attribute(owner, "state_dict"):
            return context.can_be_model(owner)
        case ast.Attribute(owner, "state_dict_type"):
            return context.fsdp1(owner) == CLASS or context.can_be_model(owner)
    return False
