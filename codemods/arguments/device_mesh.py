"""`process_group` and `device_mesh`: which ranks take part.

`fully_shard` knows meshes only. A mesh is passed on; a process group becomes a mesh at run time
(`DeviceMesh.from_group`), and a tuple of groups changes order on the way: FSDP1 has (shard, replicate), a mesh has
(replicate, shard).
"""

from __future__ import annotations

import ast

from fsdp_migrate.codemods.plan import Constructor, Plain, Translation, enclosed
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
    """A mesh that is seen to have one dimension is passed on as `mesh=`. `fully_shard` takes one of two dimensions for
HYBRID_SHARD whatever the strategy was, so a mesh whose shape is out of sight goes to the runtime, which looks at it. For
HYBRID_SHARD itself see FSDP104.""",
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
INIT_DEVICE_MESH = {
    "torch.distributed.device_mesh.init_device_mesh",
    "torch.distributed.init_device_mesh",
    "torch.distributed._tensor.init_device_mesh",
    "torch.distributed.tensor.init_device_mesh",
}

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
    if not _has_one_dimension(constructor, value):
        message = "a mesh of two dimensions would be HYBRID_SHARD under fully_shard; shard_model looks, and refuses it by name"
        return Translation(MESH, message)
    return Translation(MESH, "device_mesh is mesh", mesh_argument(constructor, value))


def _has_one_dimension(constructor: Constructor, value: ast.expr) -> bool:
    """Whether a mesh is seen to have one dimension: `mesh["dp"]`, or made with a shape of one number."""
    made = constructor.origin(value)
    if made is None:
        return False
    node = made.node
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
    if not isinstance(node, ast.Call):
        return False
    function = constructor.context.project.dotted(node.func, made.module)
    given = [k.value for k in node.keywords if k.arg == "mesh_shape"]
    shape = node.args[1] if len(node.args) > 1 else next(iter(given), None)
    return (
        bool(function)
        and function <= INIT_DEVICE_MESH
        and isinstance(shape, ast.Tuple | ast.List)
        and len(shape.elts) == 1
        and not isinstance(shape.elts[0], ast.Starred)
    )


def mesh_argument(constructor: Constructor, value: ast.expr, **more: str) -> Plain:
    """`mesh=` of every unit; a call is made once and bound to a name, since each makes process groups."""
    source = enclosed(constructor.context.source(value))
    calls = any(isinstance(node, ast.Call | ast.NamedExpr) for node in ast.walk(value))
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
