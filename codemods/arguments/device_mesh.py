"""`process_group` and `device_mesh`: which ranks take part.

`fully_shard` knows meshes only. A mesh is passed on; a process group becomes a mesh at run time
(`DeviceMesh.from_group`), and a tuple of groups changes order on the way: FSDP1 has (shard, replicate), a mesh has
(replicate, shard).
"""

from __future__ import annotations

import ast

from fsdp_migrate.codemods.plan import Constructor, Plain, Translation
from fsdp_migrate.codemods.rule import Example, Rule
from fsdp_migrate.index.values import origins

GROUP = Rule(
    "FSDP106",
    "process-group",
    "a process group becomes a mesh",
    """`process_group=` has no counterpart in `fully_shard`. The runtime makes a mesh of the very same group
(`DeviceMesh.from_group`), so collectives run on the same communicator. `dist.group.WORLD` and None are the default mesh.""",
    (
        Example(
            "a group of one's own",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, process_group=group)
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, process_group=group)
""",
        ),
        Example(
            "all ranks",
            """\
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, dist.group.WORLD)
""",
            """\
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
    ),
)
MESH = Rule(
    "FSDP107",
    "device-mesh",
    "device_mesh is mesh",
    """A one-dimensional mesh is passed on as `mesh=`. For a two-dimensional one see FSDP104: FSDP2 wants its dimensions
named.""",
    (
        Example(
            "one dimension",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, device_mesh=mesh["dp"])
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model, mesh=mesh["dp"])
""",
        ),
    ),
)
RULES = (GROUP, MESH)

HYBRID = {"HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"}

_WORLD = {
    "torch.distributed.group.WORLD",
    "torch.distributed.distributed_c10d.group.WORLD",
    "torch.distributed.GroupMember.WORLD",
}


def translate_group(constructor: Constructor) -> Translation | None:
    """What becomes of `process_group`."""
    value = constructor.value("process_group")
    if value is None:
        return None
    if constructor.is_none("process_group"):
        return Translation(GROUP, "None is the default: all ranks", Plain(), in_runtime=False)
    made = constructor.origin(value)
    if made is not None and made.node is not None:
        dotted = constructor.context.project.dotted(made.node, made.module)
        if dotted and dotted <= _WORLD:
            return Translation(GROUP, "all ranks are the default mesh", Plain(), in_runtime=False)
    return Translation(GROUP, "shard_model makes a mesh of the process group")


def translate_mesh(constructor: Constructor) -> Translation | None:
    """What becomes of `device_mesh`."""
    value = constructor.value("device_mesh")
    if value is None:
        return None
    if constructor.is_none("device_mesh"):
        return Translation(MESH, "None is the default: all ranks", Plain(), in_runtime=False)
    if constructor.constant("device_mesh", None) is ... and _may_be_none(constructor):
        return Translation(MESH, "the mesh can be None, which shard_model understands")
    strategy = constructor.value("sharding_strategy")
    if strategy is not None and constructor.member(strategy, "ShardingStrategy") in HYBRID:
        return Translation(MESH, "device_mesh is mesh", Plain())  # passed on with the strategy
    return Translation(MESH, "device_mesh is mesh", mesh_argument(constructor, value))


def mesh_argument(constructor: Constructor, value: ast.expr, **more: str) -> Plain:
    """`mesh=` of every unit; a call is made once and bound to a name, since each makes process groups."""
    source = constructor.context.source(value)
    calls = any(isinstance(node, ast.Call) for node in ast.walk(value))
    if not calls or constructor.is_none("auto_wrap_policy"):
        return Plain(shared={"mesh": source, **more})
    name = constructor.context.free("mesh", constructor.call)
    return Plain(shared={"mesh": name, **more}, setup=(f"{name} = {source}",))


def _may_be_none(constructor: Constructor) -> bool:
    """Whether some way to the mesh ends in None, or cannot be seen at all."""
    value = constructor.value("device_mesh")
    assert value is not None
    for made in origins(constructor.context.project, value, constructor.context.module):
        if made.node is None or (isinstance(made.node, ast.Constant) and made.node.value is None):
            return True
        if not isinstance(made.node, ast.Call | ast.Subscript):
            return True
    return False
