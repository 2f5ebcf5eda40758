"""`sync_module_states`: whether all ranks start from rank 0's parameters and buffers."""

from __future__ import annotations

from fsdp_migrate.codemods.plan import Constructor, Translation, switch
from fsdp_migrate.codemods.rule import Example, Rule

RULE = Rule(
    "FSDP208",
    "sync-module-states",
    "sync_module_states=True is a broadcast before sharding",
    """Ranks that start from different weights train a model whose shards come from different initialisations, and nothing
says so. FSDP1's `sync_module_states=True` broadcast parameters and buffers from rank 0; FSDP2 has nothing like it, so the
runtime broadcasts before it shards, buffers that are in no state dict among them.""",
    (
        Example(
            "a broadcast",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, sync_module_states=True)
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, sync_module_states=True)
""",
        ),
        Example(
            "none",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, sync_module_states=False)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
    ),
)
RULES = (RULE,)


def translate(constructor: Constructor) -> Translation | None:
    """What becomes of `sync_module_states`."""
    return switch(
        constructor,
        "sync_module_states",
        RULE,
        off="False: nothing is broadcast, as by default",
        on="shard_model broadcasts parameters and buffers from rank 0 before it shards",
    )
