"""Collectives on parameters and gradients: `dist.all_reduce(p.grad)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import shortened
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.codemods.surroundings.parameters import Parameters
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP522",
    "collective-on-parameter",
    "torch.distributed's collectives do not take DTensors",
    """`dist.all_reduce(p.grad)` on an FSDP2 model raises `Operator c10d.allreduce_.default does not have a sharding
strategy registered`; so do `broadcast`, `all_gather` and the others (torch 2.13). FSDP1's shards were plain tensors: there
it mixed the shards of different ranks, which is meaningful for NO_SHARD and for ignored parameters only. Gradients are
averaged by the units already, in both versions: as a rule the call can go. `local_shard(p.grad)` of the runtime is the
plain shard, for a reduction over other ranks than the model is sharded on. Ignored parameters are plain tensors and need no
change: leave those of them in the loop (`if not isinstance(p, DTensor)`).""",
    (
        Example(
            "gradients averaged once more",
            """\
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
for p in model.parameters():
    dist.all_reduce(p.grad)
""",
            """\
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

fully_shard(model)
for p in model.parameters():
    # fsdp-migrate: FSDP522 by hand: fails on a DTensor; units average gradients already; local_shard(...) is the plain shard
    dist.all_reduce(p.grad)
""",
            message="fails on a DTensor",
        ),
        Example(
            "on a line with others",
            """\
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
for p in model.parameters():
    p.grad.div_(2); dist.all_reduce(p.grad)
""",
            """\
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

fully_shard(model)
for p in model.parameters():
    # fsdp-migrate: FSDP522 by hand: fails on a DTensor; units average gradients already; local_shard(...) is the plain shard
    p.grad.div_(2); dist.all_reduce(p.grad)
""",
            message="fails on a DTensor",
        ),
        Example(
            "values, and other models' parameters",
            """\
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

for p in model.parameters():
    dist.broadcast(p.data, 0)
model = FSDP(model)
dist.all_reduce(loss)
for p in critic.parameters():
    dist.all_reduce(p.grad)
""",
            """\
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

for p in model.parameters():
    dist.broadcast(p.data, 0)
fully_shard(model)
dist.all_reduce(loss)
for p in critic.parameters():
    dist.all_reduce(p.grad)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_MESSAGE = (
    "fails on a DTensor; units average gradients already; local_shard(...) is the plain shard"
)
_COLLECTIVES = (
    "all_",
    "broadcast",
    "gather",
    "reduce",
    "scatter",
    "send",
    "recv",
    "isend",
    "irecv",
)


def find(context: Context, parameters: Parameters) -> Iterator[Draft]:
    """Collectives that are given a parameter or a gradient of an FSDP1 model, alone or in a list."""
    module = context.module
    for node, held in parameters.of(context):
        child: ast.AST = node
        parent = module.parents[child]
        if isinstance(parent, ast.List | ast.Tuple):
            child, parent = parent, module.parents[parent]
        if isinstance(parent, ast.keyword):
            parent = module.parents[parent]
        if not isinstance(parent, ast.Call) or child is parent.func:
            continue
        if any(
            path.startswith("torch.distributed.")
            and path.rpartition(".")[2].startswith(_COLLECTIVES)
            for path in context.project.dotted(parent.func, module)
        ):
            construct = shortened(context.source(parent))
            yield Draft(RULE, parent, Action.MANUAL, _MESSAGE, construct, held.sites, mark=True)
