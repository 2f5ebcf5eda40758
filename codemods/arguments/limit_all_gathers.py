"""`limit_all_gathers`: FSDP1's brake on the CPU, of which FSDP2 has no need."""

from __future__ import annotations

from fsdp_migrate.codemods.constructor_call import Constructor
from fsdp_migrate.codemods.plan import Translation, without_effect
from fsdp_migrate.codemods.rule import Example, Rule

RULE = Rule(
    "FSDP205",
    "limit-all-gathers",
    "FSDP2 bounds the memory of all-gathers by itself",
    """FSDP1's rate limiter blocked the CPU so that not too many all-gathers were in flight. FSDP2 frees memory in stream
order and needs no limiter: the argument goes away whatever its value.""",
    (
        Example(
            "any value",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, limit_all_gathers=config.limit_all_gathers)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
        Example(
            "an expression that does more than give a value",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, limit_all_gathers=options.pop("limit_all_gathers"))
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, limit_all_gathers=options.pop("limit_all_gathers"))
""",
            message="stays",
        ),
    ),
)
RULES = (RULE,)


def translate(constructor: Constructor) -> Translation | None:
    """What becomes of `limit_all_gathers`."""
    message = "FSDP2 needs no limit: the argument goes away"
    return without_effect(constructor, "limit_all_gathers", RULE, message)
