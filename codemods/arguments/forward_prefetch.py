"""`forward_prefetch`: whether the next unit is gathered ahead in forward."""

from __future__ import annotations

from fsdp_migrate.codemods.constructor_call import Constructor
from fsdp_migrate.codemods.plan import Translation, switch
from fsdp_migrate.codemods.rule import Example, Rule

RULE = Rule(
    "FSDP204",
    "forward-prefetch",
    "forward_prefetch=True is a list of units to gather ahead",
    """FSDP1 learned the order of the units in the first forward and then gathered one unit ahead. FSDP2 takes the order as
lists (`set_modules_to_forward_prefetch`); the runtime records it in the first forward. It changes speed only, never a
number.""",
    (
        Example(
            "off, the default",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, forward_prefetch=False)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
        Example(
            "on",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, forward_prefetch=True)
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, forward_prefetch=True)
""",
        ),
        Example(
            "known only when the program runs",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, forward_prefetch=config.forward_prefetch)
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, forward_prefetch=config.forward_prefetch)
""",
        ),
    ),
)
RULES = (RULE,)


def translate(constructor: Constructor) -> Translation | None:
    """What becomes of `forward_prefetch`."""
    return switch(
        constructor,
        "forward_prefetch",
        RULE,
        off="False is FSDP2's way as well",
        on="shard_model records the order of the units and prefetches along it",
    )
