"""`use_orig_params`: whether the optimizer sees the original parameters. Under FSDP2 it always does."""

from __future__ import annotations

from fsdp_migrate.codemods.plan import Constructor, Translation, without_effect
from fsdp_migrate.codemods.rule import Example, Rule

RULE = Rule(
    "FSDP206",
    "use-orig-params",
    "FSDP2 always keeps the original parameters",
    """There is no flat parameter any more: every parameter keeps its name and shape. Programs that used FSDP1's default,
False, had one flat tensor a unit in the optimizer; elementwise optimizers (SGD, Adam, AdamW) give the same numbers.""",
    (
        Example(
            "any value",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, use_orig_params=True)
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
    """What becomes of `use_orig_params`."""
    message = "FSDP2 always keeps the original parameters"
    return without_effect(constructor, "use_orig_params", RULE, message)
