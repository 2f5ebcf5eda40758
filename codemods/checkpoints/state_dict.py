"""`model.state_dict()` and `model.load_state_dict(...)` of an FSDP1 model.

An FSDP1 model gathers its full state dict by default. Under FSDP2 `model.state_dict()` holds DTensors, and saving it from rank
0 writes rank 0's shards without an error, so every such call becomes one of `get_model_state_dict`, which gathers. The same
functions work on FSDP1 models, and the files that they write are the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.checkpoints.state_dict_bodies import governing
from fsdp_migrate.codemods.checkpoints.state_dict_calls import CALLS, is_plain
from fsdp_migrate.codemods.checkpoints.state_dict_settings import Options, Settings
from fsdp_migrate.codemods.checkpoints.state_dict_types import Unknown, type_for
from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import STATE_DICT, Context
from fsdp_migrate.codemods.edit.arguments import ArgumentEdits, edit_call
from fsdp_migrate.codemods.expressions import given_for
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Need, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.models import Site

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


def find(context: Context) -> Iterator[Draft]:
    """State-dict calls on FSDP1 models, outside of contexts that give them a type."""
    yield from _not_called(context)
    for call in context.module.calls:
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr not in CALLS:
            continue
        item = governing(context, call, function.value)
        if item is not None and (not item.reason or item.is_local):
            continue  # goes or stays with its context
        sites = context.models.sharded(function.value, context.module)
        if sites:
            yield from _bare(context, call, function, sites)


def _not_called(context: Context) -> Iterator[Draft]:
    """`save = model.state_dict`: called later, where nobody sees of what."""
    for attribute in context.module.attributes:
        call = context.module.parents[attribute]
        if attribute.attr not in CALLS or (isinstance(call, ast.Call) and call.func is attribute):
            continue
        sites = context.models.sharded(attribute.value, context.module)
        if sites:
            message = "call the functions of torch.distributed.checkpoint.state_dict instead"
            construct = context.source(attribute)
            yield Draft(
                BARE, attribute, Action.MANUAL, message, construct, sites, silent=True, mark=True
            )


def functional(
    context: Context, call: ast.Call, settings: Settings
) -> tuple[Edit, tuple[Need, ...]]:
    """`model.state_dict()` as `get_model_state_dict(model, options=...)`, and loading likewise."""
    assert isinstance(call.func, ast.Attribute)
    saving = call.func.attr == "state_dict"
    function = "get_model_state_dict" if saving else "set_model_state_dict"
    name, needs = context.name(STATE_DICT, function, use=call)
    given = settings.of_model() if saving else settings.to_model()
    assert given is not None
    strict = None if saving else given_for(call, "strict", 1)
    if strict is not None:
        given = {**given, "strict": context.source(strict)}
    made, more = options(context, given, call)
    drop = {positions(call)[strict]} if strict is not None else set()

    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.Call)
        assert isinstance(updated.func, cst.Attribute)
        model = updated.func.value
        last = [] if made is None else [("options", made)]
        if saving:
            edits = ArgumentEdits(add=[(None, model), *last])
        else:
            state = 0 if strict is None else next(i for i in (0, 1) if i not in drop)
            value = updated.args[state].value
            edits = ArgumentEdits(
                drop=frozenset(drop),
                rename={state: None},
                replace={state: model},
                add=[(None, value), *last],
            )
        edited = edit_call(updated, edits, func=cst.parse_expression(name))
        return Edited(edited.call, edited.orphans)

    return Edit(context.syntax.find(call, cst.Call), apply), (*needs, *more)


def options(
    context: Context, given: Options, use: ast.AST
) -> tuple[cst.BaseExpression | None, tuple[Need, ...]]:
    """`StateDictOptions(...)`, and what to import for it; None where no option is given."""
    if not given:
        return None, ()
    kind, needs = context.name(STATE_DICT, "StateDictOptions", use=use)
    made = f"{kind}({', '.join(f'{key}={value}' for key, value in given.items())})"
    return cst.parse_expression(made), needs


def positions(call: ast.Call) -> dict[ast.expr, int]:
    """The place in the call as it is written of each value that it gives."""
    everything: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    in_order = sorted(everything, key=lambda node: (node.lineno, node.col_offset))
    return {
        node.value if isinstance(node, ast.keyword) else node: place
        for place, node in enumerate(in_order)
    }


def _bare(
    context: Context, call: ast.Call, function: ast.Attribute, sites: frozenset[Site]
) -> Iterator[Draft]:
    saving = function.attr == "state_dict"
    construct = context.source(function)
    asked = type_for(context, call, function.value)
    if isinstance(asked, Unknown):
        yield _as_it_is(asked, call, construct, sites)
    elif is_plain(call) and context.only_fsdp1(function.value):
        edit, needs = functional(context, call, asked)
        gathers = asked.kind == "FULL"
        message = "an FSDP1 model gathers here: get_model_state_dict does"
        if not saving:
            message = "an FSDP1 model takes a full state dict here: set_model_state_dict shards it"
        if not gathers:
            message = "the model's shards, by the functions for both versions of FSDP"
        yield Draft(
            BARE,
            call,
            Action.REWRITE,
            message,
            construct,
            sites,
            edits=(edit,),
            needs=needs,
            on_fsdp1=True,
        )
    else:
        message = (
            f"on an FSDP2 model this returns or takes shards: use the functions of {STATE_DICT}"
        )
        yield Draft(BARE, call, Action.MANUAL, message, construct, sites, silent=saving, mark=True)


def _as_it_is(asked: Unknown, call: ast.Call, construct: str, sites: frozenset[Site]) -> Draft:
    """A call that the runtime's type governs."""
    if asked.sure:
        message = f"stays: the runtime's type is in force here ({asked.reason})"
        return Draft(BARE, call, Action.RUNTIME, message, construct, sites)
    message = (
        f"FSDP1 gathers here unless a type is in force ({asked.reason}): set one in every case first, or use the functions "
        f"of {STATE_DICT}"
    )
    return Draft(BARE, call, Action.MANUAL, message, construct, sites, silent=True, mark=True)


Command = command(find, __doc__ or "")
