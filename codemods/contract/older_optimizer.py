"""An optimizer that is older than the shards: it goes on with parameters that nobody reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.contract.facts import breach
from fsdp_migrate.codemods.expressions import dotted
from fsdp_migrate.codemods.optimizers.kept_elsewhere import kept_by_methods
from fsdp_migrate.codemods.optimizers.kept_parameters import Kept, kept_above, names_of
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.index.module import Assigned, Module
from fsdp_migrate.index.order import after
from fsdp_migrate.index.sharded import Place

RULE = Rule(
    "FSDP703",
    "optimizer-before-shards",
    "an optimizer is built after fully_shard: an older one trains nothing",
    """`fully_shard` puts new parameters, DTensors, in the place of the old ones. An optimizer that was built before holds
the old ones. They get no gradients, so its steps change nothing: on two ranks the parameters were the same after two steps
as before, without an error. Build it after the last call of `fully_shard`, or give it the new parameters (`remap_optimizer`
of `fsdp_migrate.runtime`). A program that builds the optimizer again, or sets its groups' parameters itself, is left alone.""",
    (
        Example(
            "in front of the sharding",
            """\
import torch
from torch.distributed.fsdp import fully_shard

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
""",
            message="changes nothing",
        ),
        Example(
            "in front of a function that shards",
            """\
import torch
from torch.distributed.fsdp import fully_shard


def shard(net):
    for layer in net.layers:
        fully_shard(layer)
    fully_shard(net)


model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
shard(model)
""",
            message="line 13",
        ),
        Example(
            "after it",
            """\
import torch
from torch.distributed.fsdp import fully_shard

for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
""",
            quiet=True,
        ),
        Example(
            "given the new parameters",
            """\
import torch
from fsdp_migrate.runtime import remap_optimizer
from torch.distributed.fsdp import fully_shard

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
with remap_optimizer(optimizer, model):
    fully_shard(model)
""",
            quiet=True,
        ),
        Example(
            "of another model",
            """\
import torch
from torch.distributed.fsdp import fully_shard

optimizer = torch.optim.AdamW(critic.parameters(), lr=1e-3)
fully_shard(actor)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)


def find(context: Context) -> Iterator[Draft]:
    """Optimizers of a model's parameters above a call that shards it."""
    assert context.sharded is not None
    seen: set[ast.expr] = set()
    for place in context.sharded.places:
        if place.module is not context.module:
            continue
        for kept in _kept(context, place):
            if kept.optimizer and kept.node not in seen and not _is_repaired(context, kept, place):
                seen.add(kept.node)
                line = place.call.lineno
                message = (
                    f"changes nothing: line {line} puts sharded parameters in the place of those that it holds;"
                    " build it after fully_shard"
                )
                construct = (
                    f"{context.source(kept.node.func)}(...)"
                    if isinstance(kept.node, ast.Call)
                    else None
                )
                yield breach(RULE, context, kept.node, message, construct)


def _kept(context: Context, place: Place) -> Iterator[Kept]:
    scope = context.module.scope_of(place.call)
    names = names_of(place.model, context.module, scope)
    yield from (kept for kept in kept_above(context, scope, names, place.call) if not kept.unseen)
    if isinstance(place.model, ast.Attribute):
        found = kept_by_methods(context, place.call, place.model)
        yield from (kept for kept in found if not kept.unseen)


def _is_repaired(context: Context, kept: Kept, place: Place) -> bool:
    """Whether the optimizer gets the new parameters, or is not the one that trains."""
    module = context.module
    statement = kept.chain[-1]
    if _excludes(module, statement, place.call) or place.call in ast.walk(statement):
        return True
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    name = dotted(target) if target is not None else ""
    around = module.enclosing_function(place.call) or module.tree
    for node in ast.walk(around):
        if isinstance(node, ast.With) and place.call in ast.walk(node):
            given = [n for item in node.items for n in ast.walk(item.context_expr)]
            if name and any(dotted(n) == name for n in given):
                return True
        if isinstance(node, ast.Attribute) and node.attr in {"param_groups", "add_param_group"}:
            return True
    return bool(name) and any(
        after(other, place.call) for other in _bindings(module, target) if other is not statement
    )


def _excludes(module: Module, statement: ast.stmt, call: ast.Call) -> bool:
    """Whether the two stand in different branches, or the optimizer's branch does not go on to the sharding."""
    child: ast.AST = statement
    around = set(map(id, module.ancestors(call)))
    for parent in module.ancestors(statement):
        if isinstance(parent, ast.If) and id(parent) not in around:
            block = parent.body if child in parent.body else parent.orelse
            if isinstance(block[-1], ast.Return | ast.Raise | ast.Continue | ast.Break):
                return True
        if isinstance(parent, ast.If) and id(parent) in around:
            block = parent.body if child in parent.body else parent.orelse
            if not any(call in ast.walk(other) for other in block):
                return True
        child = parent
    return False


def _bindings(module: Module, target: ast.expr | None) -> Iterator[ast.stmt]:
    """The statements that give a name or an attribute a value."""
    if isinstance(target, ast.Name):
        for binding in module.scope_of(target).bindings.get(target.id, ()):
            if isinstance(binding, Assigned):
                yield module.statement(binding.target)
    elif isinstance(target, ast.Attribute):
        for attribute in module.attributes:
            if attribute.attr == target.attr and isinstance(attribute.ctx, ast.Store):
                yield module.statement(attribute)
