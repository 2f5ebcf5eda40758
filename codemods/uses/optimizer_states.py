"""FSDP1's functions for the states of optimizers: `FSDP.full_optim_state_dict` and its relatives."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from functools import partial

from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.rule import Example, Found, Rule, bridged
from fsdp_migrate.codemods.uses.state_dict_edits import Replacement, are_editable, call_edits
from fsdp_migrate.codemods.uses.state_dict_run import first_is_rank_0, has_other_names
from fsdp_migrate.codemods.uses.state_dict_settings import ON_RANK_0, ON_THE_CPU
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP335",
    "optimizer-state-dict",
    "full_optim_state_dict becomes get_optimizer_state_dict; what loads states is the runtime's",
    """`get_optimizer_state_dict` returns an optimizer's states by parameter name, for both versions of FSDP:
`full_optim_state_dict` gathers them on the CPU of rank 0, which is `full_state_dict=True, cpu_offload=True`, and
`sharded_optim_state_dict` gives each rank its own; the names come in another order. FSDP1's functions are gone from torch 2.14
(pytorch#191398). Where FSDP1's rank 0 is that of a process group, and not of all ranks, the runtime's stays: torch's option
means the first of all. `optim_state_dict` follows the type that is in force and stays unless a context gives it.

Before an optimizer's first step FSDP1 saves no states, and torch makes them by a step with learning rate 0
(`_init_optim_state` in torch/distributed/checkpoint/state_dict.py): a program that saves before it trains finds `step` at 1.

What loads states stays: FSDP1 writes one `step` tensor for all parameters of a flat parameter, and torch's
`set_optimizer_state_dict` counts it once for each of them without an error. It also fails for optimizers without states, such
as plain SGD. The runtime's functions return what FSDP1's did, and `optimizer.load_state_dict` takes it.""",
    (
        Example(
            "gathering for rank 0",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(model, optimizer, rank):
    state = FSDP.full_optim_state_dict(model, optimizer)
    if rank == 0:
        torch.save(state, "optimizer.pt")
""",
            """\
import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
)


def save(model, optimizer, rank):
    state = get_optimizer_state_dict(
        model,
        optimizer,
        options=StateDictOptions(full_state_dict=True, cpu_offload=True),
    )
    if rank == 0:
        torch.save(state, "optimizer.pt")
""",
            message="rank 0",
        ),
        Example(
            "each rank's own",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel

state = {"optim": FullyShardedDataParallel.sharded_optim_state_dict(model, optim=opt)}
""",
            """\
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
)

state = {
    "optim": get_optimizer_state_dict(
        model, opt, options=StateDictOptions(cpu_offload=True)
    )
}
""",
        ),
        bridged(
            "rank 0 of a process group",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, process_group=group)
state = FSDP.full_optim_state_dict(model, optimizer)
""",
            message="process group",
        ),
        bridged(
            "loading, and names that live on",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def load(model, optimizer, full):
    sharded = FSDP.scatter_full_optim_state_dict(full, model)
    optimizer.load_state_dict(sharded)
    del full, sharded
""",
            message="optimizer.load_state_dict",
        ),
        bridged(
            "the type in force decides",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

state = FSDP.optim_state_dict(model, optimizer)
""",
            message="type that is in force",
        ),
        Example(
            "an optimizer's own states",
            """\
optimizer.load_state_dict(saved)
scheduler.load_state_dict(other)
state = helper.full_optim_state_dict(model, optimizer)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

FUNCTIONS = (
    "optim_state_dict",
    "optim_state_dict_to_load",
    "full_optim_state_dict",
    "sharded_optim_state_dict",
    "shard_full_optim_state_dict",
    "scatter_full_optim_state_dict",
    "flatten_sharded_optim_state_dict",
    "rekey_optim_state_dict",
)
_STAYS = {
    "optim_state_dict": "the runtime's follows the type that is in force",
    "rekey_optim_state_dict": "the runtime's gives states names for numbers, or numbers for names",
    "full_optim_state_dict": "the runtime's gives each rank what FSDP1's did",
    "sharded_optim_state_dict": "the runtime's gives each rank what FSDP1's did",
}
_TO_LOAD = "the runtime's returns what optimizer.load_state_dict takes"
_OTHER_GROUP = "the runtime's stays: rank 0 of the model's process group may not be rank 0 of all"
# Said in each finding, since no file shows when a program saves.
FIRST_STEP = "before the optimizer's first step it makes the states, and counts that as a step"
_BECOMES = {
    "full_optim_state_dict": (
        ON_RANK_0,
        f"get_optimizer_state_dict gathers the states on the CPU of rank 0; {FIRST_STEP}",
    ),
    "sharded_optim_state_dict": (
        ON_THE_CPU,
        f"get_optimizer_state_dict gives each rank its states on the CPU; {FIRST_STEP}",
    ),
}


def find(context: Context, settled: Collection[ast.AST]) -> Iterator[Found]:
    """FSDP1's functions for optimizer states, but for the calls that a context's rewrite takes away."""
    for name in FUNCTIONS:
        for attribute in context.file.attributes.get(name, ()):
            call = context.file.parents[attribute]
            if call in settled or not _is_fsdp1s(context, attribute):
                continue
            is_call = isinstance(call, ast.Call) and call.func is attribute and context.plain
            made = replacement(context, call) if is_call else None  # type: ignore[arg-type]
            if isinstance(made, Replacement):
                yield _rewritten(context, attribute, made)
            else:
                message = made or _STAYS.get(name, _TO_LOAD)
                yield Found(RULE, attribute, Action.RUNTIME, message)


def _is_fsdp1s(context: Context, attribute: ast.Attribute) -> bool:
    """Whether an attribute is the class's function, by the class or by a model."""
    owner = attribute.value
    return context.fsdp1(owner) == CLASS or context.can_be_model(owner)


def replacement(context: Context, call: ast.Call) -> Replacement | str | None:
    """The call that takes the place of `full_optim_state_dict` or `sharded_optim_state_dict`.

    Else why there is none, or None where the function as such stays.
    """
    function = call.func
    if not isinstance(function, ast.Attribute) or context.fsdp1(function.value) != CLASS:
        return None
    given = model_and_optimizer(call) if function.attr in _BECOMES else None
    if given is None:
        return None
    options, _ = _BECOMES[function.attr]
    if options == ON_RANK_0 and not first_is_rank_0(context.models):
        return _OTHER_GROUP
    if has_other_names(context.models):
        return "the runtime's stays: names of the states may be the program's own"
    made = get_optimizer_state_dict(context, call, given, options)
    if not are_editable(context, [made]):
        return "the runtime's stays: a comment inside or another name here is in the way"
    return made


def _rewritten(context: Context, attribute: ast.Attribute, made: Replacement) -> Found:
    return Found(
        RULE,
        made.call,
        Action.REWRITE,
        _BECOMES[attribute.attr][1],
        edits=partial(call_edits, context, [made]),
        imports=tuple(made.imports(attribute.value)),
        removed=(attribute,),
    )


def model_and_optimizer(call: ast.Call) -> tuple[ast.expr, ast.expr] | None:
    """The two arguments of a call that gives nothing else but `rank0_only=True`."""
    model, optimizer = keyword(call, "model", 0), keyword(call, "optim", 1)
    if model is None or optimizer is None or len(call.args) > 2:
        return None
    for given in call.keywords:
        is_default = given.arg == "rank0_only" and ast.unparse(given.value) == "True"
        if given.arg not in {"model", "optim"} and not is_default:
            return None
    return model, optimizer


def get_optimizer_state_dict(
    context: Context, call: ast.Call, given: tuple[ast.expr, ast.expr], options: str
) -> Replacement:
    """The call of torch's function with those options."""
    arguments = [context.source(value) for value in given]
    if options:
        arguments.append(f"options={options}")
    return Replacement(call, "get_optimizer_state_dict", arguments)
