"""`backward_prefetch`: when the next unit is gathered in backward. FSDP2 always does as BACKWARD_PRE did."""

from __future__ import annotations

from fsdp_migrate.codemods.constructor_call import Constructor
from fsdp_migrate.codemods.plan import Plain, Translation
from fsdp_migrate.codemods.rule import Example, Rule

RULE = Rule(
    "FSDP203",
    "backward-prefetch",
    "FSDP2 prefetches in backward as BACKWARD_PRE does",
    """FSDP2 gathers the next unit before the gradients of the current one are computed, which is BACKWARD_PRE. BACKWARD_POST
and None give the same numbers with one unit less in memory; FSDP2 has no BACKWARD_POST, and None is
`set_modules_to_backward_prefetch` of a unit to itself, which the runtime does.""",
    (
        Example(
            "the default",
            """\
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP

model = FSDP(model, backward_prefetch=BackwardPrefetch.BACKWARD_PRE)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
        Example(
            "no prefetch",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, backward_prefetch=None)
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, backward_prefetch=None)
""",
        ),
        Example(
            "after the gradients",
            """\
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP

model = FSDP(model, backward_prefetch=BackwardPrefetch.BACKWARD_POST)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
            message="one unit earlier",
        ),
        Example(
            "chosen when the program runs",
            """\
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP

prefetch = BackwardPrefetch.BACKWARD_PRE if args.prefetch else None
model = FSDP(model, backward_prefetch=prefetch)
""",
            """\
from fsdp_migrate.runtime import BackwardPrefetch, shard_model

prefetch = BackwardPrefetch.BACKWARD_PRE if args.prefetch else None
model = shard_model(model, backward_prefetch=prefetch)
""",
        ),
    ),
)
RULES = (RULE,)


def translate(constructor: Constructor) -> Translation | None:
    """What becomes of `backward_prefetch`."""
    value = constructor.value("backward_prefetch")
    if value is None:
        return None
    member = constructor.member(value, "BackwardPrefetch")
    gone = (value,)
    if member == "BACKWARD_PRE":
        message = "BACKWARD_PRE is what FSDP2 always does"
        return Translation(RULE, message, Plain(gone=gone), in_runtime=False)
    if member == "BACKWARD_POST":
        message = "BACKWARD_POST has no counterpart: FSDP2 prefetches one unit earlier, with the same numbers"
        return Translation(RULE, message, Plain(gone=gone), in_runtime=False)
    return Translation(RULE, "shard_model prefetches as this argument says")
