"""`model.state_dict()` and `model.load_state_dict(...)` of an FSDP1 model.

An FSDP1 model gathers its full state dict by default. Under FSDP2 `model.state_dict()` holds DTensors, and saving it from rank
0 writes rank 0's shards without an error, so every such call becomes one of `get_model_state_dict`, which gathers. The same
functions work on FSDP1 models, and the files that they write are the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import STATE_DICT, Context
from fsdp_migrate.codemods.edit.arguments import ArgumentEdits, edit_call
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Need, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.models import Site
from fsdp_migrate.index.names import fsdp1_member

BARE = Rule(
    "FSDP333",
    "bare-state-dict",
    "model.state_dict() gathers under FSDP1 and does not under FSDP2",
    """Without a context an FSDP1 model returns the full state dict on every rank, and loads one. `get_model_state_dict` and
`set_model_state_dict` with `full_state_dict=True` do the same. Left behind, `state_dict()` returns shards and `torch.save`
writes those of one rank.""",
    (
        Example(
            "saving and loading",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
state = model.state_dict()
model.load_state_dict(state)
""",
            """\
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

fully_shard(model)
state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))
""",
        ),
        Example(
            "before the model is wrapped, nothing changes",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model.load_state_dict(state)
model = FSDP(model)
""",
            """\
from torch.distributed.fsdp import fully_shard

model.load_state_dict(state)
fully_shard(model)
""",
            quiet=True,
        ),
    ),
)
RULES = (BARE,)

_CALLS = {"state_dict": 0, "load_state_dict": 1}  # and how many arguments they have


def find(context: Context) -> Iterator[Draft]:
    """State-dict calls on FSDP1 models, outside of contexts that give them a type."""
    yield from _not_called(context)
    for call in context.module.calls:
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr not in _CALLS:
            continue
        if is_in_context(context, call):
            continue
        sites = context.models.sharded(function.value, context.module)
        if sites:
            yield from _bare(context, call, function, sites)


def _not_called(context: Context) -> Iterator[Draft]:
    """`save = model.state_dict`: called later, where nobody sees of what."""
    for attribute in context.module.attributes:
        call = context.module.parents[attribute]
        if attribute.attr not in _CALLS or (isinstance(call, ast.Call) and call.func is attribute):
            continue
        sites = context.models.sharded(attribute.value, context.module)
        if sites:
            message = "call the functions of torch.distributed.checkpoint.state_dict instead"
            construct = context.source(attribute)
            yield Draft(
                BARE, attribute, Action.MANUAL, message, construct, sites, silent=True, mark=True
            )


def is_in_context(context: Context, call: ast.Call) -> bool:
    """Whether a call stands inside `with FSDP.state_dict_type(...)`."""
    return any(
        isinstance(parent, ast.With)
        and any(
            isinstance(item.context_expr, ast.Call)
            and static_method(context, item.context_expr) == "state_dict_type"
            for item in parent.items
        )
        for parent in context.module.ancestors(call)
    )


def static_method(context: Context, call: ast.Call) -> str | None:
    """`state_dict_type` for `FSDP.state_dict_type(...)`, and for the same on a model."""
    if not isinstance(call.func, ast.Attribute):
        return None
    dotted = {fsdp1_member(path) for path in context.project.dotted(call.func, context.module)}
    if any(found is not None and found[0] == "FullyShardedDataParallel" for found in dotted):
        return call.func.attr
    return call.func.attr if context.sites(call.func.value) else None


def is_plain(call: ast.Call) -> bool:
    """`….state_dict()` or `….load_state_dict(state)` with no options."""
    assert isinstance(call.func, ast.Attribute)
    arguments = _CALLS.get(call.func.attr)
    return len(call.args) == arguments and not call.keywords


def functional(
    context: Context, call: ast.Call, options: dict[str, str]
) -> tuple[Edit, tuple[Need, ...]]:
    """`model.state_dict()` as `get_model_state_dict(model, options=...)`, and loading likewise."""
    assert isinstance(call.func, ast.Attribute)
    saving = call.func.attr == "state_dict"
    function = "get_model_state_dict" if saving else "set_model_state_dict"
    name, needs = context.name(STATE_DICT, function, use=call)
    kind, more = context.name(STATE_DICT, "StateDictOptions", use=call)
    given = options if saving else {"full_state_dict": "True"}
    made = f"{kind}({', '.join(f'{key}={value}' for key, value in given.items())})"

    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.Call)
        assert isinstance(updated.func, cst.Attribute)
        model, *state = [updated.func.value, *(argument.value for argument in updated.args)]
        added = [(None, value) for value in (state if state else [model])]
        edits = ArgumentEdits(
            replace={0: model} if state else {}, add=[*added, ("options", options_node)]
        )
        edited = edit_call(updated, edits, func=cst.parse_expression(name))
        return Edited(edited.call, edited.orphans)

    options_node = cst.parse_expression(made)
    return Edit(context.syntax.find(call, cst.Call), apply), (*needs, *more)


def _bare(
    context: Context, call: ast.Call, function: ast.Attribute, sites: frozenset[Site]
) -> Iterator[Draft]:
    saving = function.attr == "state_dict"
    if is_plain(call) and context.only_fsdp1(function.value):
        edit, needs = functional(context, call, {"full_state_dict": "True"})
        yield Draft(
            BARE,
            call,
            Action.REWRITE,
            "an FSDP1 model gathers here: get_model_state_dict does"
            if saving
            else "an FSDP1 model takes a full state dict here: set_model_state_dict shards it",
            context.source(function),
            sites,
            edits=(edit,),
            needs=needs,
        )
    else:
        yield Draft(
            BARE,
            call,
            Action.MANUAL,
            f"on an FSDP2 model this returns or takes shards: use the functions of {STATE_DICT}",
            context.source(function),
            sites,
            silent=saving,
            mark=True,
        )


Command = command(find, __doc__ or "")
