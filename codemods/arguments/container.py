"""`FSDP(nn.ModuleList(...))`: a container, which is never called, as a unit."""

from __future__ import annotations

import ast

from fsdp_migrate.codemods.constructor_call import Constructor
from fsdp_migrate.codemods.plan import Translation
from fsdp_migrate.codemods.rule import Example, Rule
from fsdp_migrate.index.values import origins

CONTAINER = Rule(
    "FSDP154",
    "container-unit",
    "a ModuleList or ModuleDict is no unit: it is never called",
    """FSDP1 wrapped a container without `forward`, with a warning, and never gathered what it held itself: the first step
failed, unless all parameters were in units below. `fully_shard` raises ValueError. `shard_model` does what FSDP1 did where
that trained: the parts become units, the container stays as it is; otherwise it raises ValueError and says what to shard.""",
    (
        Example(
            "a list of units",
            """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

layers = FSDP(nn.ModuleList([FSDP(layer) for layer in layers]))
""",
            """\
from torch import nn
from fsdp_migrate.runtime import shard_model
from torch.distributed.fsdp import fully_shard

layers = shard_model(nn.ModuleList([fully_shard(layer) for layer in layers]))
""",
        ),
        Example(
            "a container that is called",
            """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(nn.Sequential(first, second))
""",
            """\
from torch import nn
from torch.distributed.fsdp import fully_shard

model = fully_shard(nn.Sequential(first, second))
""",
            quiet=True,
        ),
    ),
)
RULES = (CONTAINER,)

_CONTAINERS = frozenset({"torch.nn.ModuleList", "torch.nn.ModuleDict"})


def translate(constructor: Constructor) -> Translation | None:
    """The runtime's if the model can be a container."""
    if constructor.model is None:
        return None
    project = constructor.context.project
    for made in origins(project, constructor.model, constructor.context.module):
        if isinstance(made.node, ast.Call):
            if project.dotted(made.node.func, made.module) & _CONTAINERS:
                return Translation(
                    CONTAINER, "a container is no unit: shard_model shards its parts"
                )
    return None
