"""A root that reshards after forward, only to be gathered again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.contract.facts import access, breach, given, loop_of, shardings
from fsdp_migrate.codemods.expressions import values_given
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.index.module import Assigned, Parameter
from fsdp_migrate.index.sharded import Place
from fsdp_migrate.index.values import origin

RULE = Rule(
    "FSDP707",
    "root-reshards",
    "the root needs no reshard_after_forward=True: it is gathered again right away",
    """The root's parameters are the last that forward and the first that backward needs. FSDP1 kept them, and so does
`reshard_after_forward=None`, the default: False for a root, True for other units. `True` for the root costs one more
all-gather a step (6 instead of 5 for a root with two units) for the memory of the root's parameters between forward and
backward. It is right for a model that only runs forward, or that is one of several in a step; otherwise leave the argument
out (pytorch#154655, pytorch#154704).""",
    (
        Example(
            "all alike",
            """\
from torch.distributed.fsdp import fully_shard

for layer in model.layers:
    fully_shard(layer, reshard_after_forward=True)
fully_shard(model, reshard_after_forward=True)
""",
            message="leave it out",
        ),
        Example(
            "in a dictionary for units and root",
            """\
from torch.distributed.fsdp import fully_shard

kwargs = dict(mesh=mesh, reshard_after_forward=True)
for layer in model.layers:
    fully_shard(layer, **kwargs)
fully_shard(model, **kwargs)
""",
            message="leave it out",
        ),
        Example(
            "units alone, and the default",
            """\
from torch.distributed.fsdp import fully_shard

for layer in model.layers:
    fully_shard(layer, reshard_after_forward=True)
fully_shard(model)
""",
            quiet=True,
        ),
        Example(
            "an encoder, put into a model",
            """\
from torch.distributed.fsdp import fully_shard

encoder = Encoder()
for layer in encoder.layers:
    fully_shard(layer)
fully_shard(encoder, reshard_after_forward=True)
model = Classifier(encoder)
fully_shard(model)
""",
            quiet=True,
        ),
        Example(
            "a part of a larger model",
            """\
from torch.distributed.fsdp import fully_shard

for layer in model.encoder.layers:
    fully_shard(layer)
fully_shard(model.encoder, reshard_after_forward=True)
fully_shard(model)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)


def find(context: Context) -> Iterator[Draft]:
    """Roots with `reshard_after_forward=True`."""
    places = shardings(context)
    for place in places:
        for name, value in given(context, place.call):
            if name != "reshard_after_forward" or not _is_true(value):
                continue
            if _is_root(context, place, places):
                message = (
                    "note: the root is gathered again right away: leave it out,"
                    " a root then keeps its parameters until backward, as under FSDP1"
                )
                node = value if place.call in context.module.ancestors(value) else place.call
                construct = f"{name}={context.source(value)}"
                yield breach(RULE, context, node, message, construct)


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _is_root(context: Context, place: Place, places: list[Place]) -> bool:
    """Whether a model with units below it is sharded, and nothing that it may be a part of."""
    way = access(context, place.model)
    if not isinstance(place.model, ast.Name) or loop_of(context.module, place.model):
        return False
    ways = [access(context, other.model) for other in places if other is not place]
    if not any(len(other) > 1 and other[:1] == way for other in ways):
        return False
    assert context.sharded is not None
    around = [p for p in context.sharded.places if p.site is place.site]
    bindings = context.module.scope_of(place.model).bindings.get(place.model.id, [])
    if any(isinstance(binding, Parameter) for binding in bindings) and len(around) < 2:
        return False  # who calls the function is not in sight
    return not any(_is_part(context, p) for p in around)


def _is_part(context: Context, place: Place) -> bool:
    """Whether a module belongs to another one: taken from it, put into it, or given to what is sharded next."""
    name, module = place.model, place.module
    if not isinstance(name, ast.Name):
        return True
    for binding in module.scope_of(name).bindings.get(name.id, ()):
        if isinstance(binding, Assigned) and isinstance(binding.value, ast.Attribute):
            return True
    for load in module.loads.get(name.id, ()):
        parent = module.parents[load]
        if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Attribute):
            return True
    assert context.sharded is not None
    return any(
        isinstance(made.node, ast.Call)
        and any(isinstance(v, ast.Name) and v.id == name.id for v in values_given(made.node))
        and ast.unparse(made.node.func).rpartition(".")[2][:1].isupper()  # a class
        for other in context.sharded.places
        if other.module is module and other is not place
        if (made := origin(context.project, other.model, module)) is not None
    )
