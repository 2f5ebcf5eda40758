"""`sharding_strategy`: what is sharded, and when parameters are given back.

FSDP1's five strategies are two decisions: which mesh (all ranks shard, or groups of ranks shard and groups replicate) and
whether parameters are resharded after forward. Under FSDP2 they are the two arguments `mesh` and `reshard_after_forward`.

FULL_SHARD is not `reshard_after_forward=True` everywhere. FSDP1 never frees the root's parameters after forward
(`_runtime_utils.py`, `_post_forward_reshard`), and FSDP2's default does just that: True below the root, False at the root.
So the argument is left out. NO_SHARD is not `reshard_after_forward=False`, which shards as ZeRO-2 does: it is a mesh of
shape (world, 1), every rank a replica.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from fsdp_migrate.codemods.arguments.device_mesh import HYBRID, mesh_argument, named_mesh
from fsdp_migrate.codemods.constructor_call import Constructor
from fsdp_migrate.codemods.plan import Plain, Translation
from fsdp_migrate.codemods.rule import Example, Rule

FULL_SHARD = Rule(
    "FSDP101",
    "full-shard",
    "FULL_SHARD is FSDP2's default",
    """FSDP1 frees the parameters of every unit after forward, except the root's (`_runtime_utils.py`,
`_post_forward_reshard`). `fully_shard` with `reshard_after_forward` left out does the same: True below the root, False at
the root (`_fully_shard/_fsdp_state.py`). Writing True at the root, as guides say, costs an all-gather in every backward.""",
    (
        Example(
            "the default, spelled out",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

model = FSDP(model, sharding_strategy=ShardingStrategy.FULL_SHARD)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
    ),
)
SHARD_GRAD_OP = Rule(
    "FSDP102",
    "shard-grad-op",
    "SHARD_GRAD_OP keeps parameters gathered until backward: reshard_after_forward=False",
    """Gradients and optimizer states are sharded, parameters stay gathered between forward and backward (ZeRO-2). Under
FSDP2 that is `reshard_after_forward=False` for every unit, the root among them.""",
    (
        Example(
            "one unit",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

model = FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model, reshard_after_forward=False)
""",
        ),
    ),
)
NO_SHARD = Rule(
    "FSDP103",
    "no-shard",
    "NO_SHARD replicates: a mesh of shape (world, 1)",
    """NO_SHARD is data parallelism without sharding. `reshard_after_forward=False` would shard gradients and optimizer
states; a two-dimensional mesh whose shard dimension has size 1 does not, and trains bit for bit like FSDP1's NO_SHARD. The
runtime builds that mesh on the device type that the program runs on.""",
    (
        Example(
            "replicas",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

model = FSDP(model, sharding_strategy=ShardingStrategy.NO_SHARD)
""",
            """\
from fsdp_migrate.runtime import ShardingStrategy, shard_model

model = shard_model(model, sharding_strategy=ShardingStrategy.NO_SHARD)
""",
        ),
    ),
)
HYBRID_SHARD = Rule(
    "FSDP104",
    "hybrid-shard",
    "HYBRID_SHARD shards within groups and replicates across them: a two-dimensional mesh",
    """FSDP1 takes a two-dimensional `device_mesh`, a tuple of process groups (shard, replicate), or makes groups of the
devices of one node. `fully_shard` takes a mesh with the dimensions (replicate, shard), which must have names. A mesh that is
seen to have names is passed on; everything else is built by the runtime. _HYBRID_SHARD_ZERO2 keeps parameters gathered
until backward as well.""",
    (
        Example(
            "a mesh with names",
            """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

mesh = init_device_mesh("cuda", (2, 8), mesh_dim_names=("replicate", "shard"))
model = FSDP(model, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh)
""",
            """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cuda", (2, 8), mesh_dim_names=("replicate", "shard"))
fully_shard(model, mesh=mesh)
""",
        ),
        Example(
            "groups of one node",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

model = FSDP(
    model, auto_wrap_policy=policy, sharding_strategy=ShardingStrategy.HYBRID_SHARD
)
""",
            """\
from fsdp_migrate.runtime import ShardingStrategy, shard_model

model = shard_model(
    model, auto_wrap_policy=policy, sharding_strategy=ShardingStrategy.HYBRID_SHARD
)
""",
        ),
        Example(
            "a mesh without names",
            """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

mesh = init_device_mesh("cuda", (nodes, 8))
model = FSDP(
    model, sharding_strategy=ShardingStrategy._HYBRID_SHARD_ZERO2, device_mesh=mesh
)
""",
            """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cuda", (nodes, 8), mesh_dim_names=("replicate", "shard"))
fully_shard(model, mesh=mesh, reshard_after_forward=False)
""",
            message="get names",
        ),
        Example(
            "two dimensions of a larger mesh",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

model = FSDP(
    model,
    sharding_strategy=ShardingStrategy.HYBRID_SHARD,
    device_mesh=mesh["replicate", "shard"],
)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model, mesh=mesh["replicate", "shard"])
""",
        ),
        Example(
            "a pair of groups",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

model = FSDP(
    model, (shard_group, replicate_group), ShardingStrategy.HYBRID_SHARD
)
""",
            """\
from fsdp_migrate.runtime import ShardingStrategy, shard_model

model = shard_model(
    model, (shard_group, replicate_group), ShardingStrategy.HYBRID_SHARD
)
""",
        ),
        Example(
            "neither mesh nor group nor policy",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

model = FSDP(model, sharding_strategy=ShardingStrategy.HYBRID_SHARD)
""",
            """\
from fsdp_migrate.runtime import ShardingStrategy, shard_model

model = shard_model(model, sharding_strategy=ShardingStrategy.HYBRID_SHARD)
""",
            message="FSDP1 raises ValueError",
        ),
    ),
)
DYNAMIC = Rule(
    "FSDP105",
    "dynamic-strategy",
    "a strategy that is chosen when the program runs is translated when it runs",
    """Three of four real programs take the strategy from a configuration, a dictionary or a command line. The call then
goes to `shard_model`, which has FSDP1's signature and translates whatever strategy arrives; `ShardingStrategy` itself is
imported from the runtime, so that configuration files and comparisons keep working after torch removes FSDP1.""",
    (
        Example(
            "from a configuration",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, sharding_strategy=config.strategy)
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, sharding_strategy=config.strategy)
""",
        ),
        Example(
            "one of two",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

model = FSDP(
    model,
    sharding_strategy=ShardingStrategy.SHARD_GRAD_OP
    if args.zero2
    else ShardingStrategy.FULL_SHARD,
)
""",
            """\
from fsdp_migrate.runtime import ShardingStrategy, shard_model

model = shard_model(
    model,
    sharding_strategy=ShardingStrategy.SHARD_GRAD_OP
    if args.zero2
    else ShardingStrategy.FULL_SHARD,
)
""",
        ),
        Example(
            "by its name, with comparisons",
            """\
import argparse

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

parser = argparse.ArgumentParser()
parser.add_argument("--strategy", choices=[s.name for s in ShardingStrategy])
strategy = ShardingStrategy[parser.parse_args().strategy]
if strategy is not ShardingStrategy.NO_SHARD:
    print("sharded", strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.HYBRID_SHARD))
model = FSDP(model, sharding_strategy=strategy)
""",
            """\
import argparse

from fsdp_migrate.runtime import ShardingStrategy, shard_model

parser = argparse.ArgumentParser()
parser.add_argument("--strategy", choices=[s.name for s in ShardingStrategy])
strategy = ShardingStrategy[parser.parse_args().strategy]
if strategy is not ShardingStrategy.NO_SHARD:
    print("sharded", strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.HYBRID_SHARD))
model = shard_model(model, sharding_strategy=strategy)
""",
        ),
    ),
)
RULES = (FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, DYNAMIC)


def translate(constructor: Constructor) -> Translation:
    """What becomes of the strategy, with the mesh that it needs."""
    value = constructor.value("sharding_strategy")
    if value is None or constructor.is_none("sharding_strategy"):
        return Translation(
            FULL_SHARD, "the default, FULL_SHARD, is FSDP2's default as well", Plain()
        )
    member = constructor.member(value, "ShardingStrategy")
    gone = (value,)
    if member == "FULL_SHARD":
        return Translation(
            FULL_SHARD,
            "FULL_SHARD is FSDP2's default: resharded after forward below the root, not at the root",
            Plain(gone=gone),
        )
    if member == "SHARD_GRAD_OP":
        return Translation(
            SHARD_GRAD_OP,
            "SHARD_GRAD_OP is reshard_after_forward=False in every unit",
            Plain(shared={"reshard_after_forward": "False"}, gone=gone),
        )
    if member == "NO_SHARD":
        return Translation(
            NO_SHARD, "NO_SHARD is a mesh of shape (world, 1), which shard_model builds"
        )
    if member in HYBRID:
        return _hybrid(constructor, member or "", gone)
    return Translation(DYNAMIC, "the strategy is known only when the program runs")


def _hybrid(constructor: Constructor, member: str, gone: tuple[ast.expr, ...]) -> Translation:
    mesh = constructor.value("device_mesh")
    if mesh is None or constructor.is_none("device_mesh"):
        return Translation(HYBRID_SHARD, _without_mesh(constructor, member))
    named = named_mesh(constructor, mesh)
    if named is None or not constructor.is_none("process_group"):
        message = f"{member} needs a mesh with named dimensions, which shard_model builds"
        return Translation(HYBRID_SHARD, message)
    zero2 = {"reshard_after_forward": "False"} if member == "_HYBRID_SHARD_ZERO2" else {}
    plain = mesh_argument(constructor, mesh, **zero2)
    message = f"{member} is the two-dimensional mesh that is already given as device_mesh"
    if named:
        message += ", whose dimensions get names"
    return Translation(HYBRID_SHARD, message, replace(plain, edits=named, gone=gone))


def _without_mesh(constructor: Constructor, member: str) -> str:
    """What becomes of a hybrid strategy that is given no mesh."""
    if not constructor.is_none("process_group"):
        return f"{member} over a pair of groups becomes a mesh of these groups, which shard_model builds"
    if not constructor.is_none("auto_wrap_policy") or constructor.splat:
        return f"{member} shards over the devices of a node: a mesh that shard_model builds"
    return (
        f"FSDP1 raises ValueError for {member} without a group, a mesh or a policy, and so does shard_model: "
        "give it device_mesh"
    )
