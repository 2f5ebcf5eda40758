"""Which ranks shard, and when parameters are freed: `sharding_strategy`, `process_group`, `device_mesh`.

FSDP1's five strategies are two decisions: the mesh (all ranks shard, or groups shard and replicate) and whether parameters
are freed after forward. FSDP2 has an argument for each, `mesh` and `reshard_after_forward`.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from fsdp_migrate.codemods.constructor.construction import Argument, Construction
from fsdp_migrate.codemods.constructor.leaves import Rewritten, rewritten
from fsdp_migrate.codemods.constructor.plain import (
    Plain,
    Said,
    Stays,
    bound,
    device_type,
    is_given,
    is_pure,
)
from fsdp_migrate.codemods.constructor.translate import HYBRID, reshard_after_forward
from fsdp_migrate.codemods.rule import Example, Import, Rule, bridged
from fsdp_migrate.facts.names import RUNTIME

FULL_SHARD = Rule(
    "FSDP101",
    "full-shard",
    "FULL_SHARD is FSDP2's default",
    """FSDP1 frees the parameters of every unit after forward, except the root's (`_runtime_utils.py`,
`_post_forward_reshard`). `fully_shard` with `reshard_after_forward` left out does the same: True below the root, False at
the root (`_fully_shard/_fsdp_state.py`). Writing True at the root, as guides say, costs an all-gather in every backward.""",
    (
        Example(
            "the default, written out",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

from model import Net

model = FSDP(Net(), sharding_strategy=ShardingStrategy.FULL_SHARD)
""",
            """\
from torch.distributed.fsdp import fully_shard

from model import Net

model = fully_shard(Net())
""",
        ),
    ),
)
SHARD_GRAD_OP = Rule(
    "FSDP102",
    "shard-grad-op",
    "SHARD_GRAD_OP keeps parameters gathered until backward: reshard_after_forward=False",
    """Gradients and optimizer states are sharded, and parameters stay gathered between forward and backward (ZeRO-2). Under
FSDP2 that is `reshard_after_forward=False` for every unit, the root included.""",
    (
        Example(
            "one unit",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

from model import Net

model = FSDP(Net(), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
""",
            """\
from torch.distributed.fsdp import fully_shard

from model import Net

model = fully_shard(Net(), reshard_after_forward=False)
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
        bridged(
            "replicas",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

from model import Net

model = FSDP(Net(), sharding_strategy=ShardingStrategy.NO_SHARD)
""",
            message="(world, 1)",
        ),
    ),
)
HYBRID_SHARD = Rule(
    "FSDP104",
    "hybrid-shard",
    "HYBRID_SHARD shards within groups and replicates across them: a two-dimensional mesh",
    """FSDP1 takes a two-dimensional `device_mesh`, a tuple of process groups (shard, replicate), or makes groups of the
devices of one node. `fully_shard` takes a mesh with the dimensions (replicate, shard), which must have names. A mesh that has
names in this file is passed on; every other one is built by the runtime. _HYBRID_SHARD_ZERO2 keeps parameters gathered until
backward as well.""",
    (
        Example(
            "a mesh with names",
            """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

from model import Net

mesh = init_device_mesh("cuda", (2, 8), mesh_dim_names=("replicate", "shard"))
model = FSDP(Net(), sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh)
""",
            """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from model import Net

mesh = init_device_mesh("cuda", (2, 8), mesh_dim_names=("replicate", "shard"))
model = fully_shard(Net(), mesh=mesh)
""",
        ),
    ),
)
DYNAMIC = Rule(
    "FSDP105",
    "dynamic-strategy",
    "a strategy that is chosen when the program runs is read when it runs",
    """Three of four real programs take the strategy from a configuration, a dictionary or a command line. Where the call, or
assignments that nothing else reads, show every member that it can be, each becomes the `reshard_after_forward` that it means.
The runtime reads whatever else arrives; `ShardingStrategy` comes from the runtime, too, so that configuration files and
comparisons go on working after torch removes FSDP1.""",
    (
        bridged(
            "from a configuration",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), sharding_strategy=config.strategy)
""",
            message="when the program runs",
        ),
        Example(
            "from a table",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

from model import Net

model = FSDP(
    Net(),
    sharding_strategy={
        "zero3": ShardingStrategy.FULL_SHARD,
        "zero2": ShardingStrategy.SHARD_GRAD_OP,
    }[args.mode],
)
""",
            """\
from torch.distributed.fsdp import fully_shard

from model import Net

model = fully_shard(
    Net(),
    reshard_after_forward={
        "zero3": None,
        "zero2": False,
    }[args.mode],
)
""",
        ),
    ),
)
GROUP = Rule(
    "FSDP106",
    "process-group",
    "a process group becomes a mesh",
    """`process_group=` has no counterpart in `fully_shard`. `DeviceMesh.from_group` makes a mesh of the very same group, so
collectives run on the same communicator; it needs the kind of device, which `device_id` shows. The runtime finds it out where
that is not known, or where the group may be None. `dist.group.WORLD` and None are the default mesh.""",
    (
        bridged(
            "a group of one's own",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), process_group=group)
""",
            message="a mesh of the group",
        ),
        Example(
            "a group on a known device",
            """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

group = dist.new_group([0, 1])
model = FSDP(Net(), group, device_id=torch.cuda.current_device())
""",
            """\
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from model import Net

group = dist.new_group([0, 1])
model = Net()
mesh = DeviceMesh.from_group(group, "cuda")
fully_shard(model, mesh=mesh)
""",
        ),
    ),
)
MESH = Rule(
    "FSDP107",
    "device-mesh",
    "device_mesh is mesh",
    """A mesh that has one dimension, as this file shows, is passed on as `mesh=`. `fully_shard` takes one of two dimensions
for HYBRID_SHARD whatever the strategy was, so a mesh of another origin stays with the runtime, which looks at its shape. For
HYBRID_SHARD itself see FSDP104.""",
    (
        Example(
            "one dimension",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), device_mesh=mesh["dp"])
""",
            """\
from torch.distributed.fsdp import fully_shard

from model import Net

model = fully_shard(Net(), mesh=mesh["dp"])
""",
        ),
        bridged(
            "a shape that another function knows",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), device_mesh=build_mesh(config))
""",
            message="looks at its shape",
        ),
    ),
)
RULES = (FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, DYNAMIC, GROUP, MESH)

_STRATEGIES = {
    "FULL_SHARD": (
        FULL_SHARD,
        "FSDP2's default: freed after forward below the root, not at the root",
    ),
    "SHARD_GRAD_OP": (SHARD_GRAD_OP, "reshard_after_forward=False in every unit"),
    "NO_SHARD": (
        NO_SHARD,
        "the runtime builds a mesh of shape (world, 1): every rank is a replica",
    ),
    "HYBRID_SHARD": (HYBRID_SHARD, "the runtime builds the mesh (replicate, shard)"),
    "_HYBRID_SHARD_ZERO2": (HYBRID_SHARD, "the runtime builds the mesh (replicate, shard)"),
}
_WORLD = {"torch.distributed.group.WORLD", "torch.distributed.GroupMember.WORLD"}
_INIT_DEVICE_MESH = {
    "torch.distributed.device_mesh.init_device_mesh",
    "torch.distributed.init_device_mesh",
}


def say(construction: Construction, argument: Argument) -> tuple[Rule, Said]:
    """What the bridge does with one of these arguments."""
    none = construction.is_none(argument.value)
    if argument.name == "process_group":
        text = "all ranks, the default" if none else "the runtime makes a mesh of the group"
        return GROUP, Said(text)
    if argument.name == "device_mesh":
        text = (
            "all ranks, the default"
            if none
            else "the runtime takes the mesh and looks at its shape"
        )
        return MESH, Said(text)
    if none:
        return FULL_SHARD, Said("None is FULL_SHARD, FSDP2's default")
    member = construction.member(argument.value, "ShardingStrategy")
    if member in _STRATEGIES:
        rule, text = _STRATEGIES[member]
        return rule, Said(text)
    return DYNAMIC, Said("the runtime reads the strategy when the program runs")


def plain(construction: Construction) -> dict[str, Plain]:
    """What these arguments are in plain PyTorch, by name.

    Raises:
        Stays: if one needs the runtime.
    """
    made, members = _members(construction)
    group, given = _group(construction), construction.value("device_mesh")
    said = (
        _STRATEGIES[members[0]][1] if len(members) == 1 else "reshard_after_forward of each branch"
    )
    text, above = bound(construction, "reshard_after_forward", made.text)
    shared = {} if text == "None" else {"reshard_after_forward": text}
    part = Plain(said, shared, above=above, edits=made.edits, statements=made.statements)
    part = replace(part, removed=made.leaves)
    by_group = Plain("all ranks are the default mesh")
    by_mesh = Plain("all ranks, the default")
    if given is not None:
        by_mesh = _mesh(construction, given, hybrid=[member in HYBRID for member in members])
    elif not {*members} <= {"FULL_SHARD", "SHARD_GRAD_OP"}:
        by_group = _built(construction, members[0], made, group)
        part = replace(part, removed=())  # the function that builds the mesh reads the strategy
    elif group is not None:
        by_group = _of_group(construction, group)
    return {"process_group": by_group, "sharding_strategy": part, "device_mesh": by_mesh}


def _members(construction: Construction) -> tuple[Rewritten, list[str]]:
    """The strategy with its members translated, and the members.

    Raises:
        Stays: if it may have another value.
    """
    value, context = construction.value("sharding_strategy"), construction.context
    if value is None:
        return Rewritten("None", ()), ["FULL_SHARD"]

    def member(leaf: ast.expr) -> str:
        if isinstance(leaf, ast.Constant) and leaf.value is None:
            return "FULL_SHARD"
        owner, name = construction.member_of(leaf)
        return name if owner == "ShardingStrategy" and name in _STRATEGIES else ""

    def text(leaf: ast.expr) -> str | None:
        return reshard_after_forward(member(leaf)) if member(leaf) else None

    made = rewritten(context, value, text, name="reshard_after_forward")
    if made is None:
        raise Stays("sharding_strategy is known when the program runs")
    texts = {reshard_after_forward(member(leaf)) for leaf in made.leaves}
    if len(texts) == 1 and not made.edits and is_pure(context, value):
        made = replace(made, text=texts.pop())
    return made, list(dict.fromkeys(map(member, made.leaves)))


def _group(construction: Construction) -> ast.expr | None:
    """The process group, if it is not certainly that of all ranks."""
    group = construction.value("process_group")
    return None if group is None or construction.context.dotted(group) & _WORLD else group


def _built(
    construction: Construction, member: str, made: Rewritten, group: ast.expr | None
) -> Plain:
    """The mesh of a strategy that needs two dimensions, made by the runtime."""
    device = device_type(construction)
    strategy = construction.value("sharding_strategy")
    if not device or made.edits or made.statements or strategy is None:
        raise Stays(f"sharding_strategy: {member} needs a mesh that the runtime builds")
    source = construction.context.source
    more = "" if group is None else f", process_group={source(group)}"
    name = construction.context.free("mesh", construction.call)
    return Plain(
        "the runtime builds the mesh of the strategy",
        shared={"mesh": name},
        above=(f'{name} = build_mesh({source(strategy)}, "{device}"{more})',),
        imports=(Import(RUNTIME, "build_mesh"),),
        kept=(strategy,),
    )


def _of_group(construction: Construction, group: ast.expr) -> Plain:
    """The mesh of a group that is not None."""
    context = construction.context
    value = context.value(group)
    made = isinstance(value.node, ast.Call) if value is not None else False
    device = device_type(construction)
    if not made or not device:
        raise Stays("process_group: the runtime makes a mesh of the group")
    name = context.free("mesh", construction.call)
    return Plain(
        "a mesh of this group, whose ranks communicate as before",
        shared={"mesh": name},
        above=(f'{name} = DeviceMesh.from_group({context.source(group)}, "{device}")',),
        imports=(Import("torch.distributed.device_mesh", "DeviceMesh"),),
    )


def _mesh(construction: Construction, mesh: ast.expr, *, hybrid: list[bool]) -> Plain:
    """`mesh=`, if this file shows a mesh of one dimension, or for a hybrid strategy one of two with names."""
    made = construction.context.value(mesh)
    if made is None or made.file is not construction.context.file:
        raise Stays("device_mesh: its shape is known when the program runs")
    seen = _dimensions(construction, made.node)
    if seen != (2, True) if all(hybrid) else any(hybrid) or seen[0] != 1:
        raise Stays("device_mesh: its shape is known when the program runs")
    source = construction.context.source(mesh)
    several = any(
        is_given(construction, name) for name in ("auto_wrap_policy", "sync_module_states")
    )
    if several and not isinstance(mesh, ast.Name):
        name = construction.context.free("mesh", construction.call)
        above = (f"{name} = {source}",)  # each call of init_device_mesh makes process groups
        return Plain("device_mesh is mesh", shared={"mesh": name}, above=above)
    return Plain("device_mesh is mesh", shared={"mesh": source})


def _dimensions(construction: Construction, made: ast.expr) -> tuple[int, bool]:
    """How many dimensions a mesh has, 0 if that is not seen, and whether they have names."""
    if isinstance(made, ast.Subscript):
        names = made.slice.elts if isinstance(made.slice, ast.Tuple) else [made.slice]
        strings = all(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in names)
        return (len(names), True) if strings else (0, False)
    if not isinstance(made, ast.Call):
        return 0, False
    if not construction.context.dotted(made.func) & _INIT_DEVICE_MESH:
        return 0, False
    given = {keyword.arg: keyword.value for keyword in made.keywords}
    shape = made.args[1] if len(made.args) > 1 else given.get("mesh_shape")
    if not isinstance(shape, ast.Tuple) or any(isinstance(e, ast.Starred) for e in shape.elts):
        return 0, False
    return len(shape.elts), isinstance(given.get("mesh_dim_names"), ast.Tuple)
