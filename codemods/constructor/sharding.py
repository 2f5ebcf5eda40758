"""Which ranks shard, and when parameters are freed: `sharding_strategy`, `process_group`, `device_mesh`.

FSDP1's five strategies are two decisions: the mesh (all ranks shard, or groups shard and replicate) and whether parameters
are freed after forward. FSDP2 has an argument for each, `mesh` and `reshard_after_forward`.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from fsdp_migrate.codemods.constructor.construction import Argument, Construction
from fsdp_migrate.codemods.constructor.plain import (
    Plain,
    Rewritten,
    Said,
    Stays,
    bound,
    device_type,
    is_pure,
    rewritten,
)
from fsdp_migrate.codemods.constructor.translate import HYBRID, reshard_after_forward
from fsdp_migrate.codemods.rule import Import, Rule
from fsdp_migrate.facts.names import RUNTIME

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
    "SHARD_GRAD_OP": (SHARD_GRAD_OP, "becomes reshard_after_forward=False in every unit"),
    "NO_SHARD": (
        NO_SHARD,
        "the runtime builds a mesh of shape (world, 1): every rank is a replica",
    ),
    "HYBRID_SHARD": (HYBRID_SHARD, "the runtime builds the mesh (replicate, shard)"),
    "_HYBRID_SHARD_ZERO2": (HYBRID_SHARD, "the runtime builds the mesh (replicate, shard)"),
}
_DEFAULT = "# None is FSDP2's default: freed after forward, except at the root"
_WORLD = {"torch.distributed.group.WORLD", "torch.distributed.GroupMember.WORLD"}
_INIT_DEVICE_MESH = {
    "torch.distributed.device_mesh.init_device_mesh",
    "torch.distributed.init_device_mesh",
}


def say(construction: Construction, argument: Argument) -> tuple[Rule, Said]:
    """What the bridge does with one of these arguments."""
    none = construction.is_none(argument.value)
    if argument.name == "process_group":
        text = "all ranks, the default" if none else "the runtime makes a mesh from this group"
        return GROUP, Said(text)
    if argument.name == "device_mesh":
        text = (
            "all ranks, the default" if none else "the runtime takes the mesh and reads its shape"
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
        _STRATEGIES[members[0]][1]
        if len(members) == 1
        else "each branch becomes its value of reshard_after_forward"
    )
    text, above = bound(construction, "reshard_after_forward", made.text)
    if above and "FULL_SHARD" in members:
        above = (_DEFAULT, *above)
    shared = {} if text == "None" else {"reshard_after_forward": text}
    part = Plain(said, shared, above=above, edits=made.edits, statements=made.statements)
    part = replace(part, removed=made.removed)
    by_group = Plain("is removed: the default mesh has all ranks")
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
        raise Stays("sharding_strategy is known only when the program runs")
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
        "the runtime builds the mesh for this strategy",
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
        raise Stays("process_group: the runtime makes a mesh from this group")
    name = context.free("mesh", construction.call)
    return Plain(
        "becomes a mesh made from this group: the same ranks communicate as before",
        shared={"mesh": name},
        above=(f'{name} = DeviceMesh.from_group({context.source(group)}, "{device}")',),
        imports=(Import("torch.distributed.device_mesh", "DeviceMesh"),),
    )


def _mesh(construction: Construction, mesh: ast.expr, *, hybrid: list[bool]) -> Plain:
    """`mesh=`, if this file shows a mesh of one dimension, or for a hybrid strategy one of two with names."""
    made = construction.context.value(mesh)
    if made is None or made.file is not construction.context.file:
        raise Stays("the shape of device_mesh is known only when the program runs")
    seen = _dimensions(construction, made.node)
    if seen != (2, True) if all(hybrid) else any(hybrid) or seen[0] != 1:
        raise Stays("the shape of device_mesh is known only when the program runs")
    text, above = bound(construction, "mesh", construction.context.source(mesh))
    return Plain("becomes the argument mesh", shared={"mesh": text}, above=above)


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
