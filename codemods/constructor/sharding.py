"""Which ranks shard, and when parameters are freed: `sharding_strategy`, `process_group`, `device_mesh`.

FSDP1's five strategies are two decisions: the mesh (all ranks shard, or groups shard and replicate) and whether parameters
are freed after forward. FSDP2 has an argument for each, `mesh` and `reshard_after_forward`.
"""

from __future__ import annotations

import ast

from fsdp_migrate.codemods.constructor.construction import Argument, Construction
from fsdp_migrate.codemods.constructor.part import AtRunTime, Part, bound, rewritten
from fsdp_migrate.codemods.rule import Rule

FULL_SHARD = Rule("FSDP101", "full-shard", "FULL_SHARD is FSDP2's default")
SHARD_GRAD_OP = Rule(
    "FSDP102",
    "shard-grad-op",
    "SHARD_GRAD_OP keeps parameters gathered until backward: reshard_after_forward=False",
)
NO_SHARD = Rule("FSDP103", "no-shard", "NO_SHARD replicates: a mesh of shape (world, 1)")
HYBRID_SHARD = Rule(
    "FSDP104",
    "hybrid-shard",
    "HYBRID_SHARD shards within groups and replicates across them: a two-dimensional mesh",
)
DYNAMIC = Rule(
    "FSDP105",
    "dynamic-strategy",
    "the runtime reads a strategy that is known only when the program runs",
)
GROUP = Rule("FSDP106", "process-group", "a process group becomes a mesh")
MESH = Rule("FSDP107", "device-mesh", "device_mesh becomes the argument mesh")
RULES = (FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, DYNAMIC, GROUP, MESH)

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
    "HYBRID_SHARD": (HYBRID_SHARD, "the runtime builds the mesh (replicate, shard)"),
    "_HYBRID_SHARD_ZERO2": (HYBRID_SHARD, "the runtime builds the mesh (replicate, shard)"),
}
# FULL_SHARD leaves the choice to FSDP2: freed after forward below the root, kept at the root.
_RESHARD = {"FULL_SHARD": "None", "SHARD_GRAD_OP": "False"}
_WITH_MESH = {"HYBRID_SHARD": "None", "_HYBRID_SHARD_ZERO2": "False"}
_DEFAULT = "# None is FSDP2's default: freed after forward, except at the root"
_WORLD = {"torch.distributed.group.WORLD", "torch.distributed.GroupMember.WORLD"}
_INIT_DEVICE_MESH = {
    "torch.distributed.device_mesh.init_device_mesh",
    "torch.distributed.init_device_mesh",
}


def say(construction: Construction, argument: Argument) -> tuple[Rule, str]:
    """What the runtime does with one of these arguments."""
    none = construction.is_none(argument.value)
    if argument.name == "process_group":
        return GROUP, (
            "all ranks, the default" if none else "the runtime makes a mesh of this group's ranks"
        )
    if argument.name == "device_mesh":
        return MESH, (
            "all ranks, the default" if none else "the runtime takes the mesh and reads its shape"
        )
    if none:
        return FULL_SHARD, "None is FULL_SHARD, FSDP2's default"
    member = construction.member(argument.value, "ShardingStrategy")
    if member in _STRATEGIES:
        return _STRATEGIES[member]
    return DYNAMIC, "the runtime reads the strategy when the program runs"


def strategy(construction: Construction, value: ast.expr) -> Part:
    """`reshard_after_forward=`, where the file shows the strategy and torch's own mesh will do."""
    table = _WITH_MESH if construction.value("device_mesh") is not None else _RESHARD

    def member(leaf: ast.expr) -> str:
        if isinstance(leaf, ast.Constant) and leaf.value is None:
            return "FULL_SHARD"
        owner, name = construction.member_of(leaf)
        return name if owner == "ShardingStrategy" else ""

    def text(leaf: ast.expr) -> str | None:
        return (_RESHARD | table).get(member(leaf))

    made = rewritten(
        construction.context, value, text, construction.call, name="reshard_after_forward"
    )
    if made is None:
        raise AtRunTime
    members = list(dict.fromkeys(map(member, made.leaves)))
    texts = list(dict.fromkeys(map(text, made.leaves)))
    said = "each branch becomes its value of reshard_after_forward"
    if len(members) == 1:
        said = _STRATEGIES[members[0]][1]
        if members[0] in _WITH_MESH:
            said = "device_mesh has both of its dimensions"
    if len(texts) == 1 and not made.edits:
        shared = {} if texts[0] == "None" else {"reshard_after_forward": str(texts[0])}
        return Part(said, shared, removed=made.removed)
    name, above = bound(construction, "reshard_after_forward", made.text)
    if above and "None" in texts:
        above = (_DEFAULT, *above)
    shared = {"reshard_after_forward": name}
    return Part(
        said, shared, above=above, edits=made.edits, written=made.written, removed=made.removed
    )


def group(construction: Construction, value: ast.expr) -> Part:
    """Nothing, where the group is certainly that of all ranks."""
    if construction.context.dotted(value) & _WORLD:
        return Part("is removed: the default mesh has all ranks")
    raise AtRunTime


def mesh(construction: Construction, value: ast.expr) -> Part:
    """`mesh=`, if this file shows a mesh of one dimension, or for a hybrid strategy one of two with names."""
    context = construction.context
    given = construction.value("sharding_strategy")
    member = construction.member(given, "ShardingStrategy") if given is not None else "FULL_SHARD"
    made = context.value(value)
    wanted = (2, True) if member in _WITH_MESH else (1, ...)
    seen = _dimensions(construction, made.node) if made and made.file is context.file else (0, ...)
    if (
        member not in _WITH_MESH | _RESHARD
        or seen[0] != wanted[0]
        or wanted[1] not in (..., seen[1])
    ):
        raise AtRunTime
    text, above = bound(construction, "mesh", context.source(value))
    return Part("becomes the argument mesh", shared={"mesh": text}, above=above)


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
