"""`process_group` and `device_mesh`: which ranks take part.

`fully_shard` knows meshes only. A mesh is passed on; a process group becomes a mesh at run time
(`DeviceMesh.from_group`), and a tuple of groups changes order on the way: FSDP1 has (shard, replicate), a mesh has
(replicate, shard).
"""

from __future__ import annotations

import ast

import libcst as cst

from fsdp_migrate.codemods.constructor_call import Constructor, is_argument
from fsdp_migrate.codemods.edit.arguments import ArgumentEdits
from fsdp_migrate.codemods.expressions import enclosed
from fsdp_migrate.codemods.plan import Plain, Translation
from fsdp_migrate.codemods.rule import Edit, Example, Rule
from fsdp_migrate.index.values import Origin, origins

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
        Example(
            "a group that can be None",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, process_group=group if parallel else None)
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, process_group=group if parallel else None)
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
        Example(
            "a shape of one number, or None",
            """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

encoder = FSDP(encoder, device_mesh=init_device_mesh("cuda", (world_size,)))
decoder = FSDP(decoder, device_mesh=None)
""",
            """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

fully_shard(encoder, mesh=init_device_mesh("cuda", (world_size,)))
fully_shard(decoder)
""",
        ),
        Example(
            "two dimensions, and a strategy that shards over one",
            """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

mesh = init_device_mesh("cuda", (2, 4))
model = FSDP(model, device_mesh=mesh)
""",
            """\
from torch.distributed.device_mesh import init_device_mesh
from fsdp_migrate.runtime import shard_model

mesh = init_device_mesh("cuda", (2, 4))
model = shard_model(model, device_mesh=mesh)
""",
            message="refuses",
        ),
        Example(
            "a shape that is out of sight",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, device_mesh=build_mesh(config))
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, device_mesh=build_mesh(config))
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

WORLD = {
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
        if dotted and dotted <= WORLD:
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
    if isinstance(made.node, ast.Subscript):
        return isinstance(made.node.slice, ast.Constant) and isinstance(made.node.slice.value, str)
    return _dimensions(constructor, made) == 1


def named_mesh(constructor: Constructor, value: ast.expr) -> tuple[Edit, ...] | None:
    """What gives the two dimensions of a mesh names, nothing if they have some; None if the mesh cannot be seen.

    `fully_shard` takes no mesh of two dimensions without names. They change nothing else about a mesh.
    """
    made = constructor.origin(value)
    if made is None:
        return None
    if isinstance(made.node, ast.Subscript):
        return () if _is_pair_of_names(made.node.slice) else None
    if _dimensions(constructor, made) != 2:
        return None
    assert isinstance(made.node, ast.Call)
    given = [keyword.value for keyword in made.node.keywords if keyword.arg == "mesh_dim_names"]
    if any(keyword.arg is None for keyword in made.node.keywords):
        return None
    if given:
        names = constructor.origin(given[0])
        return () if names is not None and isinstance(names.node, ast.Tuple | ast.List) else None
    if not _is_for_this_call(constructor, made):
        return None
    pair = cst.parse_expression('("replicate", "shard")')
    edits = ArgumentEdits(add=(("mesh_dim_names", pair),))
    context = constructor.context
    return (context.edit_call(made.node, edits, context.source(made.node.func)),)


def _is_for_this_call(constructor: Constructor, made: Origin) -> bool:
    """Whether a mesh is bound to a name of this file that no other constructor is given."""
    context = constructor.context
    if made.module is not context.module or len(made.names) != 1:
        return False
    readers = context.readers(made.names[0])
    return sum(is_argument(context, load) for load in readers) == 1


def _is_pair_of_names(index: ast.expr) -> bool:
    """Whether an index takes two dimensions of a larger mesh: `mesh["replicate", "shard"]`."""
    return (
        isinstance(index, ast.Tuple)
        and len(index.elts) == 2
        and all(isinstance(e, ast.Constant) and isinstance(e.value, str) for e in index.elts)
    )


def _dimensions(constructor: Constructor, made: Origin) -> int | None:
    """How many dimensions `init_device_mesh(...)` makes; None if it is another expression or its shape is out of sight."""
    if not isinstance(made.node, ast.Call):
        return None
    function = constructor.context.project.dotted(made.node.func, made.module)
    given = [k.value for k in made.node.keywords if k.arg == "mesh_shape"]
    shape = made.node.args[1] if len(made.node.args) > 1 else next(iter(given), None)
    if not function or not function <= INIT_DEVICE_MESH:
        return None
    if not isinstance(shape, ast.Tuple | ast.List):
        return None
    return None if any(isinstance(e, ast.Starred) for e in shape.elts) else len(shape.elts)


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
