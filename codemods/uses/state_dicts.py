"""The type of a model's state dict: `with FSDP.state_dict_type(model, ...)` and `FSDP.set_state_dict_type(model, ...)`.

The runtime serves every type but LOCAL_STATE_DICT, of a model in any form.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.names import CLASS, OPTIMIZER_STATES
from fsdp_migrate.findings import Action

CONTEXT = Rule("FSDP331", "state-dict-context")
SET_TYPE = Rule("FSDP332", "set-state-dict-type")
LOCAL = Rule("FSDP334", "local-state-dict")
OPTIMIZER = Rule("FSDP335", "optimizer-state-dict")
RULES = (CONTEXT, SET_TYPE, LOCAL, OPTIMIZER)

_TYPED = ("state_dict_type", "set_state_dict_type")
# What the runtime's functions for optimizers do; the others return what `optimizer.load_state_dict` takes.
_OF_OPTIMIZERS = {
    "optim_state_dict": "the runtime follows the state-dict type currently set",
    "rekey_optim_state_dict": "the runtime turns parameter numbers into names, or names into numbers",
    "full_optim_state_dict": "the runtime gives each rank what FSDP1 gave it",
    "sharded_optim_state_dict": "the runtime gives each rank what FSDP1 gave it",
}


def find(context: Context) -> Iterator[Found]:
    """Every use of FSDP1's types of state dicts, and of its functions for optimizers."""
    for _, call in _calls(context, "state_dict_type"):
        if _is_local(context, call) and not _is_around_others(context, call):
            yield _raises(call)
        else:
            message = "the runtime sets the type, of a model in any form"
            yield Found(CONTEXT, call, Action.RUNTIME, message)
    for attribute, call in _calls(context, "set_state_dict_type"):
        if _is_local(context, call) and not _are_all_in_contexts(context):
            yield _raises(call)
        else:
            message = "the runtime sets the type, and model.state_dict() follows it from here on"
            yield Found(SET_TYPE, attribute, Action.RUNTIME, message)
    for attribute, _ in _calls(context, "get_state_dict_type"):
        yield Found(SET_TYPE, attribute, Action.RUNTIME, "the runtime returns what FSDP1 did")
    yield from _local_types(context)
    yield from _of_optimizers(context)


def _calls(context: Context, name: str) -> Iterator[tuple[ast.Attribute, ast.Call]]:
    """The calls of a static method, by FSDP1's class or by a model."""
    for attribute in context.file.attributes.get(name, ()):
        call = context.file.parents[attribute]
        if isinstance(call, ast.Call) and call.func is attribute:
            if context.fsdp1(attribute.value) == CLASS or _is_of_model(context, attribute, call):
                yield attribute, call


def _is_of_model(context: Context, attribute: ast.Attribute, call: ast.Call) -> bool:
    given = keyword(call, "state_dict_type", 1)
    member = None if given is None else context.member(given)
    return context.can_be_model(attribute.value) or (member or ("",))[0] == "StateDictType"


def _is_local(context: Context, call: ast.Call) -> bool:
    """Whether a call gives LOCAL_STATE_DICT, itself or by a name that is bound once."""
    given = keyword(call, "state_dict_type", 1)
    if isinstance(given, ast.Name) and (made := context.value(given)) is not None:
        given = made.node
    return last_name(given) == "LOCAL_STATE_DICT"


def _is_around_others(context: Context, call: ast.Call) -> bool:
    """Whether a context is around state dicts of optimizers and the like alone, which do not depend on the type."""
    inside = {*ast.walk(context.file.statement(call))}
    owners = [n.value for n in context.file.attributes.get("state_dict", ()) if n in inside]
    model = keyword(call, "module", 0)
    named = model and ast.unparse(model)
    return bool(owners) and not any(
        context.can_be_model(each) or ast.unparse(each) == named for each in owners
    )


def _raises(node: ast.AST) -> Found:
    """The finding where LOCAL_STATE_DICT is asked for."""
    message = (
        "raises for this type, because FSDP2 has no flat parameters: load such files once with FSDP1, on as many ranks, and "
        "save them as FULL_STATE_DICT or SHARDED_STATE_DICT"
    )
    return Found(LOCAL, node, Action.MANUAL, message)


def _are_all_in_contexts(context: Context) -> bool:
    """Whether each state dict of a model is asked for in a context of a type, so that one set for good applies to none."""
    asked = [
        _is_typed(file, attribute)
        for file in context.program.files
        for name in ("state_dict", "load_state_dict", *OPTIMIZER_STATES)
        for attribute in file.attributes.get(name, ())
        if name in OPTIMIZER_STATES or context.models.can_hold(attribute.value, file)
    ]
    return bool(asked) and all(asked)


def _is_typed(file: File, node: ast.AST) -> bool:
    """Whether a node is in the context of a type of state dicts."""
    items = (i for n in file.ancestors(node) if isinstance(n, ast.With) for i in n.items)
    return any("state_dict_type" in file.source(item.context_expr) for item in items)


def _local_types(context: Context) -> Iterator[Found]:
    """LOCAL_STATE_DICT as a default, or as the value of a name or an argument: a context far away will ask for it."""
    for member in context.file.attributes.get("LOCAL_STATE_DICT", ()):
        place = context.file.parents[member]
        call = context.file.parents[place]
        is_asked = isinstance(call, ast.Call) and getattr(call.func, "attr", "") in _TYPED
        if context.fsdp1(member.value) == "StateDictType" and not is_asked:
            if isinstance(place, ast.Assign | ast.AnnAssign | ast.arguments | ast.keyword):
                yield _raises(member)


def _of_optimizers(context: Context) -> Iterator[Found]:
    """FSDP1's functions for optimizer states, by the class or by a model."""
    otherwise = "the runtime returns what optimizer.load_state_dict takes"
    for name in OPTIMIZER_STATES:
        for attribute in context.file.attributes.get(name, ()):
            owner = attribute.value
            if context.fsdp1(owner) == CLASS or context.can_be_model(owner):
                message = _OF_OPTIMIZERS.get(name, otherwise)
                yield Found(OPTIMIZER, attribute, Action.RUNTIME, message)
