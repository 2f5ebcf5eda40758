"""`torch.distributed._composable.fully_shard`: FSDP1 without a wrapper."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.left.measured import last_name
from fsdp_migrate.codemods.rule import Example, Found, Rule
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP011",
    "composable-fsdp1",
    "torch.distributed._composable.fully_shard was FSDP1 without a wrapper",
    """Until torch 2.5 there were two functions of this name. That of `torch.distributed._composable` took FSDP1's
arguments, two of them under other names (`policy` for `auto_wrap_policy`, `strategy` for `sharding_strategy`), and sharded in
place. torch 2.6 removed it (pytorch#141875). `torch.distributed._composable.fsdp.fully_shard` is FSDP2: not reported.""",
    (
        Example(
            "FSDP1's keywords",
            """\
from torch.distributed._composable import fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

fully_shard(model, policy=ModuleWrapPolicy({Block}), strategy=strategy)
""",
            """\
from fsdp_migrate.runtime.wrap import ModuleWrapPolicy
from torch.distributed._composable import fully_shard

fully_shard(model, policy=ModuleWrapPolicy({Block}), strategy=strategy)
""",
            message="removed in torch 2.6",
        ),
        Example(
            "FSDP2 by its old path",
            """\
from torch.distributed._composable import checkpoint
from torch.distributed._composable.fsdp import fully_shard

checkpoint(model)
fully_shard(model)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_PATHS = frozenset(
    {
        "torch.distributed._composable.fully_shard",
        "torch.distributed._composable.fully_shard.fully_shard",
    }
)
_MESSAGE = (
    "removed in torch 2.6: FullyShardedDataParallel(model, auto_wrap_policy=..., sharding_strategy=...) of"
    " fsdp_migrate.runtime shards the same units"
)


def find(context: Context) -> Iterator[Found]:
    """Calls of the function that was FSDP1's."""
    for call in context.file.of(ast.Call):
        if last_name(call) == "fully_shard" and context.dotted(call.func) & _PATHS:
            yield Found(RULE, call, Action.MANUAL, _MESSAGE, f"{context.source(call.func)}(...)")
