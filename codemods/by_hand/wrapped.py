"""Uses of a name that meant the module inside of FSDP1's wrapper: in place it is the sharded model."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand.taken import is_known_as_whole
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.wrapped import wrapped_of
from fsdp_migrate.findings import Action

RULE = Rule("FSDP528", "wrapped-module")

_WAS = "`{}` was the module inside FSDP1's wrapper"
_IS = "Now it is the sharded model itself"
_STATE = f"{_WAS}, and this returned this rank's shards. {_IS}, and this returns {{}}: check the code that saves and loads it."
_LOADED = (
    f"{_WAS}, and this loaded this rank's shards. {_IS}, and this loads {{}}: "
    "check the code that saves and loads them."
)
_APPLIED = (
    f"{_WAS}, and the function saw this rank's shards. {_IS}, and the function sees {{}}: "
    "check what it does with them."
)
_TESTED = f"{_WAS}, so this was false. {_IS}, so this is true: check the code that depends on it."
_METHODS = {"state_dict": _STATE, "load_state_dict": _LOADED, "apply": _APPLIED}


@codemod(words=("state_dict", ".apply(", "isinstance"))
def find(context: Context) -> Iterator[Found]:
    """What gave a wrapper's module something else than it gives the sharded model."""
    if not context.in_place or not context.models.shards(context.file):
        return
    wrapped = wrapped_of(context.models)
    file = context.file
    whole = "whole parameters"
    if context.form == "torch":
        whole = "DTensors"
    for name, message in _METHODS.items():
        for attribute in file.attributes.get(name, ()):
            call = context.call_of(attribute)
            owner = attribute.value
            if call is not None and wrapped.is_inside(owner, file):
                if not is_known_as_whole(context, call):
                    text = message.format(context.source(owner), whole)
                    yield Found(RULE, call, Action.MANUAL, text)
    for test in file.calls.get("isinstance", ()):
        if len(test.args) == 2 and wrapped.is_inside(test.args[0], file):
            classes = [node for node in ast.walk(test.args[1]) if isinstance(node, ast.expr)]
            if CLASS in map(context.fsdp1, classes):
                text = _TESTED.format(context.source(test.args[0]))
                yield Found(RULE, test, Action.MANUAL, text)
