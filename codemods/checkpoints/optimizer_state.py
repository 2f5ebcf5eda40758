"""FSDP1's functions for the states of optimizers: `FSDP.optim_state_dict` and its eight relatives.

`get_optimizer_state_dict` and `set_optimizer_state_dict` take their place, by parameter name as FSDP1's did. What FSDP1 turned
into a state dict for `optimizer.load_state_dict` goes into the optimizer in one call. What has no counterpart becomes the
runtime's function of the same name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from fsdp_migrate.codemods.checkpoints.loaded_result import Loading, loading
from fsdp_migrate.codemods.checkpoints.optimizer_call import OptimizerCall, bound
from fsdp_migrate.codemods.checkpoints.optimizer_examples import EXAMPLES
from fsdp_migrate.codemods.checkpoints.rank_zero import is_on_rank_zero
from fsdp_migrate.codemods.checkpoints.runtime_function import members, renamed
from fsdp_migrate.codemods.checkpoints.state_dict import options, positions
from fsdp_migrate.codemods.checkpoints.state_dict_calls import OPTIMIZER_STATE
from fsdp_migrate.codemods.checkpoints.state_dict_settings import Options, Settings
from fsdp_migrate.codemods.checkpoints.state_dict_types import type_for
from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import RUNTIME, STATE_DICT, Context
from fsdp_migrate.codemods.edit.arguments import ArgumentEdits, edit_call
from fsdp_migrate.codemods.edit.comments import comments_in, missing
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Rule, Statements
from fsdp_migrate.findings import Action
from fsdp_migrate.index.models import Site
from fsdp_migrate.index.values import origins

RULE = Rule(
    "FSDP335",
    "optimizer-state-dict",
    "FSDP's optimizer state functions become get_/set_optimizer_state_dict",
    """`torch.distributed.checkpoint.state_dict` has one function to get and one to set optimizer states, by parameter name and
for both versions of FSDP. FSDP1's functions fail on an FSDP2 model, and those for whole states are gone from torch 2.14
(pytorch#191398). Which options are meant, the type says that is in force: without one it is FULL_STATE_DICT on the CPU of every
rank, which no option says, so that `optim_state_dict` is the runtime's unless only rank 0 uses it. Loading takes
`broadcast_from_rank0` where FSDP1 read rank 0's states alone. FSDP1 writes one `step` tensor for all parameters of a flat
parameter, and torch's `set_optimizer_state_dict` goes wrong on it without an error: the runtime's of the same name gives each
parameter its own. It also loads optimizers without states, such as plain SGD, where torch's fails. So torch's is called only
where the constructor says `use_orig_params=True` and the optimizer is seen to be one that keeps states. Both make the states
of an optimizer that has none by a step with learning rate 0 (`_init_optim_state` in
torch/distributed/checkpoint/state_dict.py).""",
    EXAMPLES,
)
RULES = (RULE,)

_KEEPING = frozenset(
    {"ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop"}
)
_STATES = {"optim_state_dict", "full_optim_state_dict", "sharded_optim_state_dict"}
_FULL = {"full_state_dict": "True"}
_ON_RANK_0 = {**_FULL, "cpu_offload": "True"}


def find(context: Context) -> Iterator[Draft]:
    """References to FSDP1's functions for optimizer states."""
    for attribute, node, sites in members(context, *OPTIMIZER_STATE):
        call = None if node is None else bound(context, node, attribute)
        if isinstance(call, str):
            yield Draft(
                RULE, attribute, Action.MANUAL, call, context.source(attribute), sites, mark=True
            )
        elif call is None:
            message = "the runtime's takes the same arguments"
            yield renamed(context, RULE, attribute, message, sites)
        elif call.name in _STATES:
            yield _getting(context, call, sites)
        else:
            yield _setting(context, call, sites)


def _getting(context: Context, call: OptimizerCall, sites: frozenset[Site]) -> Draft:
    given = _options_to_get(context, call)
    if given is None or not {"model", "optim"} <= set(call.given):
        message = "the runtime's gives every rank what FSDP1 gave it, by the type that is in force"
        return renamed(context, RULE, call.attribute, message, sites)
    name, needs = context.name(STATE_DICT, "get_optimizer_state_dict", use=call.node)
    made, more = options(context, given, call.node)
    edit = context.edit_call(call.node, _edits(call, ("model", "optim"), made), name)
    return Draft(
        RULE,
        call.node,
        Action.REWRITE,
        "get_optimizer_state_dict returns the same states, by parameter name",
        context.source(call.attribute),
        sites,
        edits=(edit,),
        needs=(*needs, *more),
        gone=(call.attribute.value,) if context.fsdp1(call.attribute.value) else (),
        on_fsdp1=True,
    )


def _options_to_get(context: Context, call: OptimizerCall) -> Options | None:
    """The options with which `get_optimizer_state_dict` returns the same; None if there are none."""
    if call.name == "sharded_optim_state_dict":
        return {"cpu_offload": "True"} if call.only("model", "optim") else None
    if call.name == "full_optim_state_dict":
        value = call.given.get("rank0_only")
        on_rank_0 = value is None or (isinstance(value, ast.Constant) and value.value is True)
        return _ON_RANK_0 if on_rank_0 and call.only("model", "optim", "rank0_only") else None
    asked = type_for(context, call.node, call.given.get("model"))
    if not isinstance(asked, Settings) or not call.only("model", "optim"):
        return None
    given = asked.of_optimizer()
    if given is None and asked.kind == "FULL" and asked.optim_offload:
        return _ON_RANK_0 if is_on_rank_zero(context, call.node) else None
    return given


def _setting(context: Context, call: OptimizerCall, sites: frozenset[Site]) -> Draft:
    given = _options_to_set(context, call)
    place = None if given is None else loading(context, call.node, call.given)
    if given is None or place is None:
        message = "the runtime's returns what optimizer.load_state_dict takes"
        if call.name == "rekey_optim_state_dict":
            message = (
                "the runtime's gives the states other keys: names for numbers, or numbers for names"
            )
        draft = renamed(context, RULE, call.attribute, message, sites)
        return draft if not call.former else _in_order(context, call, draft)
    return _set(context, call, given, place, sites)


def _options_to_set(context: Context, call: OptimizerCall) -> Options | None:
    names = ("model", "optim", "load_directly")
    if call.of_states() is None or "model" not in call.given:
        return None
    if call.name == "optim_state_dict_to_load":
        asked = type_for(context, call.node, call.given["model"])
        plain = call.only(*names, "optim_state_dict")
        return asked.to_optimizer() if plain and isinstance(asked, Settings) else None
    if call.name == "flatten_sharded_optim_state_dict":
        return {}
    if not call.only(*names, "full_optim_state_dict"):
        return None
    if call.name == "shard_full_optim_state_dict":
        return _FULL
    if call.name == "scatter_full_optim_state_dict":
        return {**_FULL, "broadcast_from_rank0": "True"}
    return None


def _set(
    context: Context, call: OptimizerCall, given: Options, place: Loading, sites: frozenset[Site]
) -> Draft:
    """One call that puts the states into the optimizer, where FSDP1's result went into it."""
    plain = _has_own_parameters(context, sites) and _keeps_states(context, place.optimizer)
    module = STATE_DICT if plain else RUNTIME
    name, needs = context.name(module, "set_optimizer_state_dict", use=call.node)
    made, more = options(context, given, call.node)
    names = ("model", "optim", next(k for k in call.given if k.endswith("optim_state_dict")))
    edits = _edits(call, names, made)
    function = cst.parse_expression(name)
    changes = _changes(context, call, edits, function, place)
    message = "set_optimizer_state_dict puts the states into the optimizer"
    if not plain:
        message += ", the runtime's also those of flat parameters, which share a `step`"
    return Draft(
        RULE,
        call.node,
        Action.REWRITE if plain else Action.RUNTIME,
        message,
        context.source(call.attribute),
        sites,
        edits=changes,
        needs=(*needs, *more),
        gone=(call.attribute.value,) if context.fsdp1(call.attribute.value) else (),
        on_fsdp1=True,
    )


def _changes(
    context: Context,
    call: OptimizerCall,
    edits: ArgumentEdits,
    function: cst.BaseExpression,
    place: Loading,
) -> tuple[Edit, ...]:
    def of_call(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.Call)
        given = edits if "optim" in call.given else _with_optimizer(updated, edits, place.optimizer)
        edited = edit_call(updated, given, func=function)
        return Edited(edited.call, edited.orphans)

    if place.nested is not None:  # optimizer.load_state_dict(FSDP...(...))

        def of_outer(updated: cst.CSTNode) -> Edited:
            assert isinstance(updated, cst.Call)
            inner = updated.args[0].value
            edited = of_call(inner)
            kept = [*comments_in(edited.node), *edited.orphans]
            return Edited(edited.node, (*edited.orphans, *missing(comments_in(updated), kept)))

        return (Edit(context.syntax.find(place.nested, cst.Call), of_outer),)
    changes = [Edit(context.syntax.find(call.node, cst.Call), of_call)]
    if place.assignment is not None:
        changes.append(Edit(context.syntax.statement(place.assignment), _value_alone))
    if place.load is not None:
        changes.append(context.removal(place.load, comments_stay=True))
    return tuple(changes)


def _value_alone(updated: cst.CSTNode) -> Statements:
    """`name = call` as `call`."""
    assert isinstance(updated, cst.SimpleStatementLine)
    assign = updated.body[0]
    assert isinstance(assign, cst.Assign)
    lost = missing(comments_in(assign), comments_in(assign.value))
    expression = cst.Expr(assign.value, semicolon=assign.semicolon)
    return Statements([updated.with_changes(body=[expression])], tuple(lost))


def _edits(
    call: OptimizerCall, names: tuple[str, ...], made: cst.BaseExpression | None
) -> ArgumentEdits:
    """The arguments of those names by position, in that order, and nothing else but options."""
    place = positions(call.node)
    kept = [place[call.given[name]] for name in names if name in call.given]
    return ArgumentEdits(
        drop=frozenset(place.values()) - set(kept),
        rename=dict.fromkeys(kept),
        order=kept,
        add=() if made is None else [("options", made)],
    )


def _with_optimizer(updated: cst.Call, edits: ArgumentEdits, optimizer: ast.expr) -> ArgumentEdits:
    """The edits, with the optimizer between the model and the states where the call does not give it."""
    assert edits.order is not None
    states = edits.order[-1]
    value = cst.parse_expression(ast.unparse(optimizer))
    return replace(
        edits,
        replace={states: value},
        add=[(None, updated.args[states].value), *edits.add],
    )


def _in_order(context: Context, call: OptimizerCall, draft: Draft) -> Draft:
    """The runtime's function with its arguments in the order that they have since torch 2.1."""
    place = positions(call.node)
    order = [place[call.given[name]] for name in ("model", "optim", "optim_state_dict")]
    name, needs = context.name(RUNTIME, call.name, use=call.node)
    edit = context.edit_call(call.node, ArgumentEdits(order=order), name)
    return replace(draft, edits=(edit,), needs=needs)


def _has_own_parameters(context: Context, sites: frozenset[Site]) -> bool:
    """Whether every constructor of a model says `use_orig_params=True`: its files have no flat parameters."""
    plans = [context.plans.get(site.call) for site in sites if site.call is not None]
    return len(plans) == len(sites) > 0 and all(
        plan is not None and plan.constructor.constant("use_orig_params", False) is True
        for plan in plans
    )


def _keeps_states(context: Context, optimizer: ast.expr) -> bool:
    """Whether an optimizer is one of torch's that have a state for each parameter."""
    made = origins(context.project, optimizer, context.module)
    return bool(made) and all(
        isinstance(one.node, ast.Call)
        and bool(paths := context.project.dotted(one.node.func, one.module))
        and all(
            path.startswith("torch.optim.") and path.rpartition(".")[2] in _KEEPING
            for path in paths
        )
        for one in made
    )


Command = command(find, __doc__ or "")
