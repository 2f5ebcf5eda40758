"""What checkpoint files hold: `save_pretrained` of a sharded model, and a file a rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.checkpoints.state_dict_bodies import around
from fsdp_migrate.codemods.checkpoints.state_dict_settings import Settings
from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import given_for, values_given
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.findings import Action

PRETRAINED = Rule(
    "FSDP339",
    "save-pretrained",
    "save_pretrained of a sharded model needs the gathered state dict",
    """Without `state_dict=` Transformers takes the model's own, which under FSDP2 holds DTensors. Gather it first, on all
ranks: `get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))`, and let rank 0 write it.
An FSDP2 model's class is called `FSDP` and the name of its own, which may end up in `config.architectures`
(transformers#40750): look at the file that is written.""",
    (
        Example(
            "the model's own state dict",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model.save_pretrained(path)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
# fsdp-migrate: FSDP339 by hand: give it state_dict=get_model_state_dict(...), gathered by all ranks
model.save_pretrained(path)
""",
            message="state_dict=",
        ),
        Example(
            "a gathered state dict",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model.save_pretrained(path, state_dict=state)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
model.save_pretrained(path, state_dict=state)
""",
            quiet=True,
        ),
    ),
)
A_RANK = Rule(
    "FSDP519",
    "file-a-rank",
    "files that every rank writes of its shards change their contents",
    """Under SHARDED_STATE_DICT `torch.save` writes a rank's ShardedTensors with FSDP1 and its DTensors with FSDP2. Each program
reads what it wrote itself, on as many ranks; neither reads the other's. What there is of such files, load with FSDP1 and save
with torch.distributed.checkpoint or as FULL_STATE_DICT: both read those.""",
    (
        Example(
            "a file a rank",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    state = model.state_dict()
    torch.save(state, f"{rank}.pt")
""",
            """\
import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

fully_shard(model)
state = get_model_state_dict(model)
# fsdp-migrate: FSDP519 by hand: a file of a rank's shards: convert those that FSDP1 wrote to FULL or dcp files
torch.save(state, f"{rank}.pt")
""",
            message="convert those that FSDP1 wrote",
        ),
        Example(
            "files of torch.distributed.checkpoint",
            """\
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    dcp.save(model.state_dict(), checkpoint_id=path)
""",
            """\
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

fully_shard(model)
dcp.save(get_model_state_dict(model), checkpoint_id=path)
""",
            quiet=True,
        ),
    ),
)
RULES = (PRETRAINED, A_RANK)

_FILES = frozenset({"torch.save", "torch.load"})


def find(context: Context) -> Iterator[Draft]:
    """Files that hold shards where they held something else."""
    for call in context.module.calls:
        function = call.func
        if not isinstance(function, ast.Attribute):
            continue
        if function.attr == "save_pretrained":
            sites = context.sites(function.value)
            if sites and given_for(call, "state_dict") is None:
                message = "give it state_dict=get_model_state_dict(...), gathered by all ranks"
                construct = context.source(function)
                yield Draft(PRETRAINED, call, Action.MANUAL, message, construct, sites, mark=True)
        elif function.attr in {"save", "load"} and _is_of_shards(context, call):
            message = (
                "a file of a rank's shards: convert those that FSDP1 wrote to FULL or dcp files"
            )
            yield Draft(A_RANK, call, Action.MANUAL, message, context.source(function), mark=True)


def _is_of_shards(context: Context, call: ast.Call) -> bool:
    """Whether `torch.save` or `torch.load` is for a state dict that a context of SHARDED_STATE_DICT gives or takes."""
    paths = context.project.dotted(call.func, context.module)
    if not paths or not paths <= _FILES:
        return False
    return any(
        _meet(context, own, call)
        for item in around(context, call)
        if isinstance(item.settings, Settings) and item.settings.kind == "SHARDED"
        for own in item.calls
    )


def _meet(context: Context, own: ast.Call, file: ast.Call) -> bool:
    """Whether one call is given the other's result, directly or under a name."""
    assert isinstance(own.func, ast.Attribute)
    giver, taker = (own, file) if own.func.attr == "state_dict" else (file, own)
    statement = context.module.statement(giver)
    names = {
        target.id
        for target in (statement.targets if isinstance(statement, ast.Assign) else ())
        if isinstance(target, ast.Name)
    }
    return any(
        node is giver or (isinstance(node, ast.Name) and node.id in names)
        for argument in values_given(taker)
        for node in ast.walk(argument)
    )


Command = command(find, __doc__ or "")
