"""Which ranks shard, and when parameters are freed: `sharding_strategy`, `process_group`, `device_mesh`.

FSDP1's five strategies are two decisions: the mesh (all ranks shard, or groups shard and replicate) and whether parameters
are freed after forward. FSDP2 has an argument for each, `mesh` and `reshard_after_forward`. A mesh that is not the default
one `units` makes or reads.
"""

import ast

from fsdp_migrate.codemods.constructor.construction import AtRunTime, Construction
from fsdp_migrate.codemods.constructor.layout import Code
from fsdp_migrate.codemods.dictionaries import Argument
from fsdp_migrate.codemods.rule import Rule

FULL_SHARD = Rule("FSDP101", "full-shard")
SHARD_GRAD_OP = Rule("FSDP102", "shard-grad-op")
NO_SHARD = Rule("FSDP103", "no-shard")
HYBRID_SHARD = Rule("FSDP104", "hybrid-shard")
DYNAMIC = Rule("FSDP105", "dynamic-strategy")
GROUP = Rule("FSDP106", "process-group")
MESH = Rule("FSDP107", "device-mesh")
RULES = (FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, DYNAMIC, GROUP, MESH)

_HYBRID = (HYBRID_SHARD, "the runtime builds the mesh (replicate, shard)")
_STRATEGIES = {
    "FULL_SHARD": (
        FULL_SHARD,
        "FSDP2's default: parameters are freed after forward, except the root's",
    ),
    "SHARD_GRAD_OP": (SHARD_GRAD_OP, "reshard_after_forward=False in every unit"),
    "NO_SHARD": (
        NO_SHARD,
        "the runtime builds a mesh of shape (world, 1): every rank is a replica",
    ),
    "HYBRID_SHARD": _HYBRID,
    "_HYBRID_SHARD_ZERO2": _HYBRID,
}


def say(construction: Construction, argument: Argument) -> tuple[Rule, str]:
    """What the runtime does with a strategy."""
    if construction.is_none(argument.value):
        return FULL_SHARD, "None is FULL_SHARD, FSDP2's default"
    member = construction.member(argument.value, "ShardingStrategy") or ""
    dynamic = (DYNAMIC, "the runtime reads the strategy when the program runs")
    return _STRATEGIES.get(member, dynamic)


def strategy(construction: Construction, value: ast.expr, code: Code) -> str:
    """`reshard_after_forward=`, where all ranks shard."""
    member = construction.member(value, "ShardingStrategy")
    if member not in ("FULL_SHARD", "SHARD_GRAD_OP"):
        raise AtRunTime
    if member == "SHARD_GRAD_OP":
        code.shared["reshard_after_forward"] = "False"
    return ""
