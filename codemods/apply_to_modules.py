"""`model.apply(function)`: a function that is called with every module, as a rule to initialise parameters.

FSDP1's `apply` gathers the parameters first and writes changes back. On an FSDP2 model it is `nn.Module`'s: the function gets
DTensors, whose shapes are whole and whose random numbers are others, or cannot work with them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.rule import Draft, Enclose, Example, Rule
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP363",
    "apply",
    "model.apply(f) runs with whole parameters",
    """`FullyShardedDataParallel.apply` calls the function with whole parameters, unit by unit. The runtime's
`summon_full_params` around the call does so for all units at once, which takes memory for the whole model. A call whose result
is used is left to be done by hand. Where `f` does not touch parameters the context is not needed.""",
    (
        Example(
            "initialising a sharded model",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model.apply(init_weights)
""",
            """\
from fsdp_migrate.runtime import summon_full_params
from torch.distributed.fsdp import fully_shard

fully_shard(model)
with summon_full_params(model):
    model.apply(init_weights)
""",
        ),
        Example(
            "a result that is used",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
train(model.apply(init_weights))
""",
            message="in a statement of its own",
        ),
        Example(
            "before sharding",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = Net()
model.apply(init_weights)
model = FSDP(model)
""",
            """\
from torch.distributed.fsdp import fully_shard

model = Net()
model.apply(init_weights)
fully_shard(model)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)


def find(context: Context) -> Iterator[Draft]:
    """`apply` of expressions that hold an FSDP1 model."""
    for attribute in context.module.attributes:
        call = context.module.parents[attribute]
        if attribute.attr != "apply" or not (isinstance(call, ast.Call) and call.func is attribute):
            continue
        sites = context.sites(attribute.value)
        if not sites:
            continue
        statement = context.module.parents[call]
        construct = context.source(attribute)
        if isinstance(statement, ast.Expr) and context.stands_alone(statement):
            name, needs = context.name(RUNTIME, "summon_full_params", use=call)
            manager = f"{name}({context.source(attribute.value)})"
            yield Draft(
                RULE,
                attribute,
                Action.RUNTIME,
                "the function gets whole parameters, as FSDP1's apply gives it",
                construct,
                sites,
                places=(Enclose(context.syntax.statement(statement), manager),),
                needs=needs,
            )
            continue
        message = "call it in a statement of its own, inside summon_full_params of the runtime"
        yield Draft(RULE, attribute, Action.MANUAL, message, construct, sites, silent=True)


Command = command(find, __doc__ or "")
