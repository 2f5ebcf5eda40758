"""Weights that two modules share: `self.head.weight = self.embed.weight`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import dotted
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.codemods.surroundings.classes import (
    in_class,
    model_classes,
    own_plans,
    unit_classes,
)
from fsdp_migrate.codemods.surroundings.parameters import Parameters
from fsdp_migrate.index.module import Module
from fsdp_migrate.index.project import Definition

RULE = Rule(
    "FSDP503",
    "tied-weights",
    "weights that are shared must lie in one unit",
    """A parameter that two units share is sharded by both, which cuts the tie: the two ends go on as two parameters. From
torch 2.12 on `fully_shard` raises ValueError, before it cut the tie in silence (pytorch#176076); `shard_model` refuses it
on every version. FSDP1 failed in its first forward (`size mismatch`), or cut the tie as well where parameters were flat.
Ties inside one unit, such as the root, are the same to the last bit. Take the class of either end out of the policy, so
that both stay in the root; by hand, `fully_shard([model.embed, model.head])` makes them one unit.

The finding stands where a class of the model ties two of its modules, and the policy makes a unit of the class of one.""",
    (
        Example(
            "an embedding that is a unit",
            """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight


model = Net()
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.Embedding}))
""",
            """\
from torch import nn
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        # fsdp-migrate: FSDP503 by hand: the policy puts the two ends in different units: take the class of either out of it
        self.head.weight = self.embed.weight


model = Net()
for module in reversed(list(model.modules())):
    if isinstance(module, nn.Embedding):
        fully_shard(module)
fully_shard(model)
""",
            message="different units",
        ),
        Example(
            "both in the root",
            """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.block = Block()
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight


model = Net()
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}))
""",
            """\
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.block = Block()
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight


model = Net()
for module in reversed(list(model.modules())):
    if isinstance(module, Block):
        fully_shard(module)
fully_shard(model)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_MESSAGE = "the policy puts the two ends in different units: take the class of either out of it"


def find(context: Context, parameters: Parameters) -> Iterator[Draft]:
    """Ties between modules of which a policy makes one a unit."""
    said: set[ast.AST] = set()
    for plan in own_plans(context):
        own, others = unit_classes(context, plan)
        units = {cls.node for cls in own}
        for cls in model_classes(context, plan):
            for tie, ends in _ties(cls):
                made = [_class_of(context, cls, end) for end in ends]
                if tie in said or not any(end in others or end in units for end in made):
                    continue
                said.add(tie)
                yield in_class(RULE, context, plan, cls.module, tie, _MESSAGE)


def _ties(cls: Definition) -> Iterator[tuple[ast.Assign, list[str]]]:
    """`self.head.weight = self.embed.weight`, with the names of the two modules."""
    for node in ast.walk(cls.node):
        if not isinstance(node, ast.Assign):
            continue
        ends = [*node.targets, node.value]
        if all(isinstance(end, ast.Attribute) and end.attr == "weight" for end in ends):
            modules = [dotted(end.value) for end in ends if isinstance(end, ast.Attribute)]
            if all(name.startswith("self.") for name in modules):
                yield node, modules


def _class_of(context: Context, cls: Definition, name: str) -> ast.AST | str | None:
    """The class of the module that a class keeps under a name: its definition, or its dotted name."""
    for node in ast.walk(cls.node):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if any(dotted(target) == name for target in node.targets):
                return _called(context, cls.module, node.value.func)
    return None


def _called(context: Context, module: Module, function: ast.expr) -> ast.AST | str | None:
    made = context.project.definition(function, module)
    if made is not None:
        return made.node
    return next(iter(context.project.dotted(function, module)), None)
