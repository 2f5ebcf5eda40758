"""State-dict calls that rank 0 alone makes.

They are collective under both versions: every rank has to make them, or those that do wait for ever.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.checkpoints.state_dict_calls import CALLS, OPTIMIZER_STATE, static_method
from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rank_guards import guard
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP336",
    "state-dict-on-one-rank",
    "a state dict is gathered by all ranks, not by rank 0 alone",
    """`get_model_state_dict` and its relatives gather, so every rank must call them, as it had to call FSDP1's `state_dict()`.
Behind `if rank == 0:` rank 0 waits for the others until the process group's timeout. Move the call in front of the condition
and leave behind it what only rank 0 does with the result.""",
    (
        Example(
            "gathering behind a condition",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
if rank == 0:
    torch.save(model.state_dict(), path)
""",
            """\
import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

fully_shard(model)
if rank == 0:
    # fsdp-migrate: FSDP336 by hand: all ranks must call this: move it out of `if rank == 0`
    torch.save(
        get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)),
        path,
    )
""",
            message="move it out",
        ),
        Example(
            "gathering after the others have left",
            """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)


def save(path):
    if dist.get_rank() != 0:
        return
    torch.save(model.state_dict(), path)
""",
            """\
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

fully_shard(model)


def save(path):
    if dist.get_rank() != 0:
        return
    # fsdp-migrate: FSDP336 by hand: all ranks must call this: `dist.get_rank() != 0` keeps the others away
    torch.save(
        get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)),
        path,
    )
""",
            message="keeps the others away",
        ),
        Example(
            "gathering in front of it",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
state = model.state_dict()
if rank == 0:
    torch.save(state, path)
    torch.save(scheduler.state_dict(), other)
""",
            """\
import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

fully_shard(model)
state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
if rank == 0:
    torch.save(state, path)
    torch.save(scheduler.state_dict(), other)
""",
            quiet=True,
        ),
        Example(
            "new keys, which need no other rank",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, OptimStateKeyType

model = FSDP(model)
if rank == 0:
    state = FSDP.rekey_optim_state_dict(state, OptimStateKeyType.PARAM_ID, plain)
""",
            """\
from fsdp_migrate.runtime import OptimStateKeyType, rekey_optim_state_dict
from torch.distributed.fsdp import fully_shard

fully_shard(model)
if rank == 0:
    state = rekey_optim_state_dict(state, OptimStateKeyType.PARAM_ID, plain)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_COLLECTIVE = {*OPTIMIZER_STATE, "summon_full_params"} - {"rekey_optim_state_dict"}


def find(context: Context) -> Iterator[Draft]:
    """State-dict calls of FSDP1 models that only one rank makes."""
    for call in context.module.calls:
        function = call.func
        if not isinstance(function, ast.Attribute):
            continue
        if function.attr in CALLS:
            sites = context.models.sharded(function.value, context.module)
        elif static_method(context, call) in _COLLECTIVE:
            sites = context.concerned(function) or frozenset()
        else:
            continue
        test = guard(context, call)
        if test is not None and (sites or function.attr not in CALLS):
            message = f"all ranks must call this: {_instead(context, call, test)}"
            construct = context.source(function)
            yield Draft(RULE, call, Action.MANUAL, message, construct, sites, mark=True)


def _instead(context: Context, call: ast.Call, test: ast.expr) -> str:
    """What to do about a condition: the call stands in its block, or behind it."""
    condition = context.module.parents[test]
    if isinstance(condition, ast.If) and any(
        parent in condition.body for parent in context.module.ancestors(call)
    ):
        return f"move it out of `if {ast.unparse(test)}`"
    return f"`{ast.unparse(test)}` keeps the others away"


Command = command(find, __doc__ or "")
