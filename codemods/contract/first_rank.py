"""What all ranks must do together, done by one of them alone: the others wait for it, or it for them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.contract.facts import breach, holds
from fsdp_migrate.codemods.expressions import given_for, values_given
from fsdp_migrate.codemods.rank_guards import guard
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.index.values import origin

_HEADER = """\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
"""
RULE = Rule(
    "FSDP717",
    "collective-on-one-rank",
    "gathering is for all ranks: on one alone it waits for ever",
    """A forward of a sharded model gathers its parameters, and so do `get_model_state_dict` with `full_state_dict=True`,
`get_optimizer_state_dict` with it, and `full_tensor()`. All ranks of the mesh take part. Behind `if rank == 0:` one rank
waits for the others, which have gone on to another collective or to their end: the program hangs until a timeout (seen on
two ranks). Call them on every rank, and let rank 0 alone write what they return.""",
    (
        Example(
            "gathered by one rank",
            _HEADER + "if rank == 0:\n"
            "    options = StateDictOptions(full_state_dict=True, cpu_offload=True)\n"
            '    torch.save(get_model_state_dict(model, options=options), "model.pt")\n',
            message="every rank",
        ),
        Example(
            "evaluated by one rank",
            _HEADER + "if torch.distributed.get_rank() == 0:\n    print(model(sample))\n",
            message="every rank",
        ),
        Example(
            "written by one rank",
            _HEADER + "options = StateDictOptions(full_state_dict=True, cpu_offload=True)\n"
            "state = get_model_state_dict(model, options=options)\n"
            "if rank == 0:\n"
            '    torch.save(state, "model.pt")\n',
            quiet=True,
        ),
        Example(
            "a plain model of one rank",
            _HEADER + "if rank == 0:\n    print(teacher(sample))\n",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_STATE_DICT = "torch.distributed.checkpoint.state_dict"
_GATHERING = frozenset(
    f"{_STATE_DICT}.{name}"
    for name in ("get_model_state_dict", "get_optimizer_state_dict", "get_state_dict")
)


def find(context: Context) -> Iterator[Draft]:
    """Calls that communicate, in code of one rank."""
    for call in context.module.calls:
        if not _communicates(context, call):
            continue
        test = guard(context, call)
        if test is not None:
            message = f"all ranks take part, and `{ast.unparse(test)}` keeps the others away: call it on every rank"
            yield breach(RULE, context, call, message, f"{context.source(call.func)}(...)")


def _communicates(context: Context, call: ast.Call) -> bool:
    if holds(context, call.func):
        return True
    if isinstance(call.func, ast.Attribute) and call.func.attr == "full_tensor":
        return not call.args
    if context.project.dotted(call.func, context.module) & _GATHERING:
        return _is_full(context, call) and any(holds(context, v) for v in values_given(call))
    return False


def _is_full(context: Context, call: ast.Call) -> bool:
    """Whether a state dict is asked for in full."""
    options = given_for(call, "options")
    made = origin(context.project, options, context.module) if options is not None else None
    if made is None or not isinstance(made.node, ast.Call):
        return False
    full = given_for(made.node, "full_state_dict")
    return isinstance(full, ast.Constant) and full.value is True
