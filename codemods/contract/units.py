"""What `fully_shard` is given: a whole model without units below it, or a container that nobody calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.contract.facts import breach, loop_of, shardings
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.index.module import Module, Parameter
from fsdp_migrate.index.sharded import Place
from fsdp_migrate.index.values import origin

SINGLE = Rule(
    "FSDP702",
    "single-unit",
    "only the root is sharded: one all-gather of everything",
    """Parameters are gathered unit by unit: a unit is a module that `fully_shard` was called on. With the root alone there
is one unit. Its all-gather holds the whole model unsharded on every rank, nothing is communicated while something is
computed, and the root keeps its parameters from forward to backward (`reshard_after_forward=None` means False for a root).
That trains right, but with more memory than sharding is used for. Call `fully_shard` on the blocks first, then on the
model. Nothing is said where another call of `fully_shard` stands in the files around.""",
    (
        Example(
            "a model in one piece",
            """\
import torch
from torch.distributed.fsdp import fully_shard

model = Transformer(config).to("cuda")
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
""",
            message="one unit",
        ),
        Example(
            "blocks, then the root",
            """\
from torch.distributed.fsdp import fully_shard

for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
""",
            quiet=True,
        ),
        Example(
            "a function that others may call for each unit",
            """\
from torch.distributed.fsdp import fully_shard


def shard(module):
    return fully_shard(module)
""",
            quiet=True,
        ),
        Example(
            "one layer",
            """\
from torch import nn
from torch.distributed.fsdp import fully_shard

head = nn.Linear(16, 4)
fully_shard(head)
""",
            quiet=True,
        ),
    ),
)
CONTAINER = Rule(
    "FSDP712",
    "container-as-unit",
    "a ModuleList or ModuleDict cannot be a unit: nobody calls it",
    """The hooks of a unit run when it is called, and a container has no `forward` to call. `fully_shard` refuses it:
`ValueError: fully_shard does not support containers that do not implement forward` (`_validate_module` in `_fsdp_init.py`).
Shard the elements. Sequential is called, so it can be a unit.""",
    (
        Example(
            "a list of layers",
            """\
from torch import nn
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))


model = Net()
fully_shard(model.layers)
fully_shard(model)
""",
            message="shard its elements",
        ),
        Example(
            "its elements, and a Sequential",
            """\
from torch import nn
from torch.distributed.fsdp import fully_shard

layers = nn.ModuleList([Block(), Block()])
for layer in layers:
    fully_shard(layer)
fully_shard(nn.Sequential(*layers))
""",
            quiet=True,
        ),
    ),
)
RULES = (SINGLE, CONTAINER)

_CONTAINERS = frozenset({"torch.nn.ModuleList", "torch.nn.ModuleDict"})


def find(context: Context) -> Iterator[Draft]:
    """Roots without units, and containers."""
    found = shardings(context)
    for place in found:
        kind = container(context, place.model)
        if kind is not None:
            message = f"a {kind} has no forward, and fully_shard refuses it: shard its elements"
            yield breach(CONTAINER, context, place.call, message)
    if len(found) == 1 and _is_only_one(context, found[0]):
        message = (
            "note: the model is one unit, gathered in one piece and kept until backward:"
            " call fully_shard on its blocks first"
        )
        yield breach(SINGLE, context, found[0].call, message)


def _is_only_one(context: Context, place: Place) -> bool:
    """Whether one call shards one model, once, and no other shards a part of it."""
    assert context.sharded is not None
    around = context.project.connected(context.module)
    direct = [p for p in context.sharded.places if p.is_direct and p.module in around]
    if direct != [place] or _is_repeated(context, place) or _is_small(context, place):
        return False
    uses = "\n".join(module.text for module in around).count("fully_shard(")
    if uses > 1:  # in a lambda, under another name, in a helper that is handed on
        return False
    if not isinstance(place.model, ast.Name | ast.Attribute):
        return isinstance(place.model, ast.Call)
    name = place.model
    if isinstance(name, ast.Name):
        if loop_of(context.module, name) is not None:
            return False
        bindings = context.module.scope_of(name).bindings.get(name.id, [])
        if any(isinstance(binding, Parameter) for binding in bindings):
            function = context.module.enclosing_function(place.call)
            callers = context.models.callers_of(function) if function else []
            return len(callers) == 1 and not _in_loop(callers[0][0], callers[0][1])
    return True


def _is_repeated(context: Context, place: Place) -> bool:
    return isinstance(context.module.enclosing_function(place.call), ast.Lambda) or _in_loop(
        context.module, place.call
    )


def _in_loop(module: Module, node: ast.AST) -> bool:
    ancestors = module.ancestors(node)
    kinds = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.GeneratorExp, ast.Lambda)
    return any(isinstance(parent, kinds) for parent in ancestors)


def _is_small(context: Context, place: Place) -> bool:
    """Whether the model is a single layer of torch's, or an attribute: a part of something."""
    if isinstance(place.model, ast.Attribute):
        return not (isinstance(place.model.value, ast.Name) and place.model.value.id == "self")
    made = origin(context.project, place.model, context.module)
    if made is None or not isinstance(made.node, ast.Call):
        return False
    dotted = context.project.dotted(made.node.func, made.module)
    return any(path.startswith("torch.nn.") and "Transformer" not in path for path in dotted)


def container(context: Context, model: ast.expr) -> str | None:
    """`ModuleList` or `ModuleDict`, where a module is known to be one."""
    if isinstance(model, ast.Attribute):
        cls = context.models.class_of(model.value, context.module)
        if cls is None:
            return None
        kinds = {
            kind
            for node in ast.walk(cls.node)
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Attribute)
            and target.attr == model.attr
            and isinstance(target.value, ast.Name)
            and target.value.id == "self"
            for kind in [_made(context, node.value, cls.module)]
        }
        return kinds.pop() if len(kinds) == 1 else None
    made = origin(context.project, model, context.module)
    if made is None or made.node is None:
        return None
    return _made(context, made.node, made.module)


def _made(context: Context, value: ast.expr, module: Module) -> str | None:
    if not isinstance(value, ast.Call):
        return None
    dotted = context.project.dotted(value.func, module)
    if dotted and dotted <= _CONTAINERS:
        return next(iter(dotted)).rpartition(".")[2]
    return None
