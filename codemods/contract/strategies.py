"""FSDP1's strategies, ported to `reshard_after_forward` alone: two of the five need a mesh."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.contract.facts import breach, words_around
from fsdp_migrate.codemods.rule import Draft, Example, Rule

RULE = Rule(
    "FSDP708",
    "strategy-needs-mesh",
    "NO_SHARD and HYBRID_SHARD are meshes, not values of reshard_after_forward",
    """`reshard_after_forward=False` keeps parameters gathered between forward and backward. That is SHARD_GRAD_OP:
parameters, gradients and optimizer states are still sharded over all ranks (on two ranks each holds half of every
parameter), and are gathered for every forward. NO_SHARD replicates: the mesh `init_device_mesh(device, (world_size, 1),
mesh_dim_names=("replicate", "shard"))`, or DistributedDataParallel. HYBRID_SHARD and _HYBRID_SHARD_ZERO2 shard inside a
node and replicate over nodes: a mesh of two dimensions with names; without one `fully_shard` shards over all ranks
(pytorch#152710).

The results are the same up to rounding; memory and communication are not, which is what a strategy is chosen for. Found are
dictionaries, conditions and `match` statements that lead from the name of a strategy to a value of `reshard_after_forward`.""",
    (
        Example(
            "a table",
            """\
from torch.distributed.fsdp import fully_shard

RESHARD = {"FULL_SHARD": True, "SHARD_GRAD_OP": False, "NO_SHARD": False}
for layer in model.layers:
    fully_shard(layer, reshard_after_forward=RESHARD[strategy])
fully_shard(model)
""",
            message="(world_size, 1)",
        ),
        Example(
            "a condition",
            """\
from torch.distributed.fsdp import fully_shard

if strategy in ("SHARD_GRAD_OP", "NO_SHARD"):
    reshard_after_forward = False
else:
    reshard_after_forward = True
for layer in model.layers:
    fully_shard(layer, reshard_after_forward=reshard_after_forward)
fully_shard(model)
""",
            message="NO_SHARD",
        ),
        Example(
            "hybrid sharding over all ranks",
            """\
from torch.distributed.fsdp import fully_shard

RESHARD = {"HYBRID_SHARD": True, "_HYBRID_SHARD_ZERO2": False}
for layer in model.layers:
    fully_shard(layer, reshard_after_forward=RESHARD[strategy])
fully_shard(model)
""",
            message="two dimensions",
        ),
        Example(
            "with a mesh",
            """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RESHARD = {"HYBRID_SHARD": True, "SHARD_GRAD_OP": False}
mesh = init_device_mesh("cuda", (nodes, ranks), mesh_dim_names=("replicate", "shard"))
for layer in model.layers:
    fully_shard(layer, mesh=mesh, reshard_after_forward=RESHARD[strategy])
fully_shard(model, mesh=mesh)
""",
            quiet=True,
        ),
        Example(
            "a table of something else",
            """\
from torch.distributed.fsdp import fully_shard

SHARDED = {"FULL_SHARD": True, "NO_SHARD": False}
if SHARDED[strategy]:
    fully_shard(model, reshard_after_forward=True)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_STRATEGY = re.compile(r"_?(NO_SHARD|HYBRID_SHARD(_ZERO2)?)\Z", re.IGNORECASE)
_NO_SHARD = (
    "this is SHARD_GRAD_OP: parameters stay sharded over all ranks; NO_SHARD is a mesh"
    ' (world_size, 1) named ("replicate", "shard")'
)
_HYBRID = (
    "without a mesh this shards over all ranks: HYBRID_SHARD is a mesh of two dimensions"
    ' named ("replicate", "shard")'
)


def find(context: Context) -> Iterator[Draft]:
    """Ways from a strategy's name to `reshard_after_forward`, in files around a call of `fully_shard`."""
    assert context.sharded is not None
    if "reshard_after_forward" not in context.module.text:
        return
    around = context.project.connected(context.module)
    if not any(place.is_direct and place.module in around for place in context.sharded.places):
        return
    meshes = "mesh" in words_around(context)
    for node in ast.walk(context.module.tree):
        for name, place in _ported(context, node):
            if name.upper().lstrip("_") == "NO_SHARD":
                yield breach(RULE, context, place, _NO_SHARD, name)
            elif not meshes:
                yield breach(RULE, context, place, _HYBRID, name)


def _ported(context: Context, node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The strategies that a node gives a value for `reshard_after_forward`, with the place of each."""
    if isinstance(node, ast.Dict):
        if _is_read_for_resharding(context, node):
            for key, value in zip(node.keys, node.values, strict=True):
                name = _strategy(key)
                if name and _fits(name, value):
                    yield name, value
    elif isinstance(node, ast.If | ast.IfExp):
        values = _values(node.body) if isinstance(node, ast.If) else []
        if isinstance(node, ast.IfExp) and _is_for_resharding(context, node):
            values = [node.body]
        for name in _asked_for(node.test):
            yield from ((name, value) for value in values if _fits(name, value))
    elif isinstance(node, ast.match_case):
        for name in _strategies(node.pattern):
            yield from ((name, value) for value in _values(node.body) if _fits(name, value))


def _fits(name: str, value: ast.expr) -> bool:
    """Whether a value is what careless ports give: False for NO_SHARD, either for the hybrid ones."""
    if not isinstance(value, ast.Constant) or not isinstance(value.value, bool):
        return False
    return "HYBRID" in name.upper() or value.value is False


def _strategy(node: ast.AST | None) -> str | None:
    """`"NO_SHARD"`, `ShardingStrategy.NO_SHARD`."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "value", None)
    return name if isinstance(name, str) and _STRATEGY.match(name) else None


def _strategies(node: ast.AST) -> list[str]:
    return [name for inner in ast.walk(node) if (name := _strategy(inner))]


def _asked_for(test: ast.expr) -> list[str]:
    """The strategies for which a condition holds."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return [name for value in test.values for name in _asked_for(value)]
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        if isinstance(test.ops[0], ast.Eq | ast.Is | ast.In):
            return _strategies(test)
    return []


def _values(body: list[ast.stmt]) -> list[ast.expr]:
    """What a block gives `reshard_after_forward`: a name, an entry, or a dictionary with it."""
    found: list[ast.expr] = []
    for statement in body:
        if isinstance(statement, ast.Assign):
            if any("reshard" in ast.unparse(target) for target in statement.targets):
                found.append(statement.value)
        for node in ast.walk(statement):
            if isinstance(node, ast.keyword) and node.arg == "reshard_after_forward":
                found.append(node.value)
            elif isinstance(node, ast.Dict):
                found += [
                    value
                    for key, value in zip(node.keys, node.values, strict=True)
                    if isinstance(key, ast.Constant) and key.value == "reshard_after_forward"
                ]
    return found


def _is_for_resharding(context: Context, node: ast.AST) -> bool:
    """Whether a value is given to something that is called so."""
    parent = context.module.parents[node]
    if isinstance(parent, ast.keyword):
        return parent.arg == "reshard_after_forward"
    if isinstance(parent, ast.Assign | ast.AnnAssign):
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        return any("reshard" in ast.unparse(target).lower() for target in targets)
    return False


def _is_read_for_resharding(context: Context, table: ast.Dict) -> bool:
    """Whether a table is called after resharding, or an entry of it is given to `reshard_after_forward`."""
    if _is_for_resharding(context, table):
        return True
    module = context.module
    parent: ast.AST = module.parents[table]
    if isinstance(parent, ast.Subscript | ast.Attribute):
        call = module.parents[parent]
        return _is_for_resharding(context, call if isinstance(call, ast.Call) else parent)
    if not (isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name)):
        return False
    for load in module.loads.get(parent.targets[0].id, ()):
        use = module.parents[load]
        if isinstance(use, ast.Attribute):
            use = module.parents[use]
        if isinstance(use, ast.Subscript | ast.Call) and _is_for_resharding(context, use):
            return True
    return False
