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
from fsdp_migrate.index.module import Opaque, Parameter
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
POSSIBLE = Rule(
    "FSDP020",
    "possible-use",
    "a state dict of something that may be an FSDP1 model",
    """The analysis follows every FSDP1 model forwards, but not through containers, unknown functions and attributes of unknown
objects. A state-dict call on something that cannot be told to be no model is listed, so that nobody saves the shards of one
rank unawares. `get_model_state_dict` and `set_model_state_dict` are right for plain models as well.""",
    (
        Example(
            "an object that cannot be told",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(trainer, path):
    torch.save(trainer.model.state_dict(), path)


model = FSDP(model)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard


def save(trainer, path):
    # fsdp-migrate: FSDP020 by hand: if this is the FSDP1 model, get_model_state_dict
    torch.save(trainer.model.state_dict(), path)


fully_shard(model)
""",
            message="get_model_state_dict",
        ),
    ),
)
RULES = (BARE, POSSIBLE)

_CALLS = {"state_dict": 0, "load_state_dict": 1}  # and how many arguments they have

# Words in names of what has a state dict and is no model.
_OTHERS = (
    "optim",
    "opt",
    "sched",
    "scaler",
    "loader",
    "sampler",
    "dataset",
    "iterator",
    "tokenizer",
    "metric",
    "generator",
)


def find(context: Context) -> Iterator[Draft]:
    """State-dict calls on FSDP1 models, outside of contexts that give them a type."""
    yield from _not_called(context)
    around = context.project.connected(context.module)
    near_constructor = any(module in around for module, _ in context.models.constructors)
    for call in context.module.calls:
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr not in _CALLS:
            continue
        if is_in_context(context, call):
            continue
        sites = context.models.sharded(function.value, context.module)
        if sites:
            yield from _bare(context, call, function, sites)
        elif near_constructor and _may_be_model(context, function.value):
            message = "if this is the FSDP1 model, "
            message += "get" if function.attr == "state_dict" else "set"
            message += "_model_state_dict"
            yield Draft(POSSIBLE, call, Action.MANUAL, message, context.source(function), mark=True)


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


def _may_be_model(context: Context, receiver: ast.expr) -> bool:
    """Whether nothing says that a receiver is no FSDP1 model: its name, its class, or where its value was made."""
    last = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
    if any(word in last.lower() for word in _OTHERS) or last in {"self", "super"}:
        return False
    if isinstance(receiver, ast.Call):
        return not (isinstance(receiver.func, ast.Name) and receiver.func.id == "super")
    if isinstance(receiver, ast.Attribute):
        if isinstance(receiver.value, ast.Name) and receiver.value.id == "self":
            return False  # what the class's own methods store there is followed
        return context.models.class_of(receiver.value, context.module) is None
    if isinstance(receiver, ast.Name):
        return _is_unseen(context, receiver)
    return True


def _is_unseen(context: Context, name: ast.Name) -> bool:
    """Whether a name's value comes from where the analysis cannot look: a loop, or a parameter that no known call fills."""
    module = context.module
    found = module.lookup(name.id, module.scope_of(name))
    if found is None:
        return False
    for binding in found[1]:
        if isinstance(binding, Parameter) and not context.models.callers_of(binding.function):
            return True
        if isinstance(binding, Opaque) and isinstance(binding.node, ast.For | ast.comprehension):
            return True
    return False


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
