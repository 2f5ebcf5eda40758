"""Parameters that a step does not use: `find_unused_parameters=True` beside FSDP1."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import dotted, given_for
from fsdp_migrate.codemods.optimizers.kept_parameters import unchained
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.codemods.surroundings.classes import own_plans
from fsdp_migrate.codemods.surroundings.parameters import Parameters
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP511",
    "unused-parameters",
    "unused parameters have no gradient under FSDP2, and zeros under FSDP1",
    """FSDP1 reduced the gradient of a whole unit: a parameter that took no part in the loss got zeros as soon as another of
its unit had a gradient, and weight decay and momentum went on changing it. FSDP2 leaves `grad` at None, and the optimizer
passes it by. Measured with torch 2.13 on two ranks: the same to the last bit without weight decay and momentum; with
AdamW's default weight decay 2.8e-4 apart after a few steps. A unit of which nothing is used has no gradients in either
version.

`fill_unused_gradients(model)` of the runtime, between backward and clipping or the step, gives the zeros that FSDP1 gave,
to the last bit. Where ranks use different parameters, FSDP1 trained and FSDP2 fails or hangs: from torch 2.13 on
`model.set_reduce_scatter_unused_params(True)` has it reduce zeros instead, also for units that nobody used.

The finding stands where the same model is given to DistributedDataParallel with `find_unused_parameters=True`: the program
says that it has such parameters.""",
    (
        Example(
            "the other branch says so",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

if args.fsdp:
    model = FSDP(model)
else:
    model = DDP(model, find_unused_parameters=True)
""",
            """\
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

if args.fsdp:
    fully_shard(model)
else:
    model = DDP(model, find_unused_parameters=True)
""",
            message="fill_unused_gradients",
        ),
        Example(
            "all parameters are used",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

if args.fsdp:
    model = FSDP(model)
else:
    model = DDP(model)
critic = DDP(critic, find_unused_parameters=True)
""",
            """\
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

if args.fsdp:
    fully_shard(model)
else:
    model = DDP(model)
critic = DDP(critic, find_unused_parameters=True)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_MESSAGE = (
    "unused parameters of a unit had zero gradients under FSDP1 and have none under FSDP2, which weight decay shows:"
    " fill_unused_gradients(model) of the runtime before the step gives the zeros"
)


def find(context: Context, parameters: Parameters) -> Iterator[Draft]:
    """Calls with `find_unused_parameters=True` on a model that a constructor of the same function shards."""
    module = context.module
    for call in module.calls:
        asked = given_for(call, "find_unused_parameters")
        if not (isinstance(asked, ast.Constant) and asked.value is True):
            continue
        given = given_for(call, "module", 0)
        name = dotted(unchained(given)) if given is not None else ""
        sites = frozenset(
            plan.site
            for plan in own_plans(context)
            if plan.constructor.model is not None
            and name
            and dotted(unchained(plan.constructor.model)) == name
            and module.enclosing_function(plan.constructor.call) is module.enclosing_function(call)
        )
        if sites:
            yield Draft(RULE, call, Action.MANUAL, _MESSAGE, "find_unused_parameters=True", sites)
