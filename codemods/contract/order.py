"""The order of `fully_shard`: children before their parents, and every module once."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.contract.facts import (
    Access,
    access,
    breach,
    certainly_before,
    loop_of,
    shardings,
)
from fsdp_migrate.codemods.contract.units import container
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.index.module import Assigned, Module
from fsdp_migrate.index.order import after
from fsdp_migrate.index.project import Definition
from fsdp_migrate.index.sharded import Place

RULE = Rule(
    "FSDP701",
    "sharding-order",
    "children are sharded before their parents, and every module once",
    """A call of `fully_shard` takes the parameters below a module that no earlier call has taken (`fully_shard` in
`torch/distributed/fsdp/_fully_shard/_fully_shard.py`). A child that is sharded after its parent finds its parameters in the
parent's group already and fails: `TypeError: Invariant encountered: value was None when it should not be`. A module that is
sharded twice fails too: `AssertionError: Each distinct composable distributed API can only be applied to a module once`.
`model.modules()` gives parents first, so a loop over it needs `reversed(list(model.modules()))` as soon as one module that
it shards stands in another; with a single class whose instances do not nest, its order does not matter.""",
    (
        Example(
            "the layers after the model",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
for layer in model.layers:
    fully_shard(layer)
""",
            message="line 3",
        ),
        Example(
            "twice",
            """\
from torch.distributed.fsdp import fully_shard

for layer in model.layers:
    fully_shard(layer)
for layer in model.layers:
    fully_shard(layer, reshard_after_forward=False)
fully_shard(model)
""",
            message="is sharded already, in line 4",
        ),
        Example(
            "parents first, in a loop",
            """\
from torch import nn
from torch.distributed.fsdp import fully_shard


class Attention(nn.Module):
    pass


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()


for module in model.modules():
    if isinstance(module, (Block, Attention)):
        fully_shard(module)
fully_shard(model)
""",
            message="reversed(list(model.modules()))",
        ),
        Example(
            "children first",
            """\
from torch.distributed.fsdp import fully_shard

for layer in model.layers:
    fully_shard(layer.attention)
    fully_shard(layer)
fully_shard(model)
""",
            quiet=True,
        ),
        Example(
            "one class, which does not nest",
            """\
from torch.distributed.fsdp import fully_shard

for module in model.modules():
    if isinstance(module, Block):
        fully_shard(module)
fully_shard(model)
""",
            quiet=True,
        ),
        Example(
            "one or the other",
            """\
from torch.distributed.fsdp import fully_shard

if whole:
    fully_shard(model)
else:
    fully_shard(model.encoder)
model = build()
fully_shard(model)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_BOTTOM_UP = "shard children first: for module in reversed(list({}.modules()))"


def find(context: Context) -> Iterator[Draft]:
    """Calls of `fully_shard` that come too late, and loops that give parents first."""
    module = context.module
    earlier: list[tuple[Place, Access]] = []
    for place in shardings(context):
        found = _from_the_top(context, place)
        if found is not None:
            yield found
        way = access(context, place.model)
        for before, above in earlier:
            if way[: len(above)] == above and _same_scope(module, before, place):
                if not certainly_before(module, before.call, place.call):
                    continue
                if _is_bound_between(module, above[0], before.call, place.call):
                    continue
                line = before.call.lineno
                if way == above and not _filtered(module, before, place):
                    message = (
                        f"is sharded already, in line {line}: fully_shard takes no module twice"
                    )
                elif len(way) > len(above):
                    message = f"shard it before its parent, which line {line} shards: its parameters are taken"
                else:
                    continue
                yield breach(RULE, context, place.call, message)
                break
        if way and not container(context, place.model):
            earlier.append((place, way))


def _same_scope(module: Module, before: Place, place: Place) -> bool:
    return (
        module.scope_of(before.call) is module.scope_of(place.call)
        and before.call is not place.call
        and after(place.call, before.call)
    )


def _filtered(module: Module, before: Place, place: Place) -> bool:
    """Whether a condition in a loop chooses the elements that either of the two shards."""
    return any(
        isinstance(node, ast.If)
        for one in (before, place)
        if isinstance(one.model, ast.Name) and (loop := loop_of(module, one.model)) is not None
        for node in module.ancestors(one.call)
        if loop in module.ancestors(node)
    )


def _is_bound_between(module: Module, name: str, first: ast.AST, second: ast.AST) -> bool:
    """Whether a name may stand for another module at the second of two places."""
    scope = module.scope_of(second)
    for binding in scope.bindings.get(name, ()):
        node = binding.target if isinstance(binding, Assigned) else getattr(binding, "node", None)
        if node is None:
            continue
        statement = module.statement(node) if isinstance(node, ast.expr) else node
        if first in ast.walk(statement) and not isinstance(statement, ast.For):
            continue
        if after(statement, first) and after(second, statement):
            return True
    return False


def _from_the_top(context: Context, place: Place) -> Draft | None:
    """A loop over `model.modules()` that shards a module and one inside of it."""
    if not isinstance(place.model, ast.Name):
        return None
    loop = loop_of(context.module, place.model)
    if loop is None or not isinstance(loop.iter, ast.Call):
        return None
    function = loop.iter.func
    if not isinstance(function, ast.Attribute) or function.attr not in {"modules", "named_modules"}:
        return None
    tests = [
        node.test
        for node in context.module.ancestors(place.call)
        if isinstance(node, ast.If) and loop in context.module.ancestors(node)
    ]
    leaving = any(
        isinstance(node, ast.Continue | ast.Break) for node in ast.walk(loop) if node is not loop
    )
    whole = not tests and not leaving
    if not whole and (leaving or len(tests) != 1 or not _nest(context, tests[0], place.model.id)):
        return None
    owner = context.source(function.value)
    return breach(RULE, context, place.call, _BOTTOM_UP.format(owner))


def _nest(context: Context, test: ast.expr, name: str) -> bool:
    """Whether a condition asks for classes of which one has another inside."""
    if not (
        isinstance(test, ast.Call)
        and isinstance(test.func, ast.Name)
        and test.func.id == "isinstance"
        and len(test.args) == 2
        and isinstance(test.args[0], ast.Name)
        and test.args[0].id == name
    ):
        return False
    kinds = test.args[1].elts if isinstance(test.args[1], ast.Tuple) else [test.args[1]]
    classes = [context.project.definition(kind, context.module) for kind in kinds]
    found = [c for c in classes if c is not None and isinstance(c.node, ast.ClassDef)]
    return any(_makes(context, outer, inner) for outer in found for inner in found)


def _makes(context: Context, outer: Definition, inner: Definition) -> bool:
    """Whether code of one class makes an instance of the other."""
    return any(
        isinstance(node, ast.Call) and context.project.definition(node.func, outer.module) == inner
        for node in ast.walk(outer.node)
    )
