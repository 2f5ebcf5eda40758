"""`model.forward(x)`: the forward called by its name.

FSDP1's wrapper had a `forward` of its own, which gathered parameters. Under FSDP2 `forward` is the model's: hooks gather, and
they run only where the model is called. Called directly it computes with sharded parameters, which fails.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Rule
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP364",
    "direct-forward",
    "model.forward(x) becomes model(x)",
    """A direct call of `forward` passes by the hooks with which FSDP2 gathers parameters, and fails on a mixture of tensors
and DTensors (pytorch#156535). Calling the model runs the same `forward`, with the hooks. Where the method is not called but
passed on, or the model may be a DistributedDataParallel, it is left to be done by hand. For methods beside `forward` that use
parameters, torch has `register_fsdp_forward_method`.""",
    (
        Example(
            "a direct call",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
loss = model.forward(batch, labels=labels)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
loss = model(batch, labels=labels)
""",
        ),
        Example(
            "passed on",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
run(model.forward)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
# fsdp-migrate: FSDP364 by hand: pass the model itself: its forward alone does not gather parameters
run(model.forward)
""",
            message="pass the model itself",
        ),
        Example(
            "a part of the model",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
loss = criterion.forward(model(batch))
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
loss = criterion.forward(model(batch))
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)


def find(context: Context) -> Iterator[Draft]:
    """`forward` of expressions that hold an FSDP1 model."""
    for attribute in context.module.attributes:
        sites = context.sites(attribute.value) if attribute.attr == "forward" else None
        if not sites or not isinstance(attribute.ctx, ast.Load):
            continue
        construct = context.source(attribute)
        call = context.module.parents[attribute]
        called = isinstance(call, ast.Call) and call.func is attribute
        if called and context.only_fsdp1(attribute.value):
            yield Draft(
                RULE,
                attribute,
                Action.REWRITE,
                "called, the model gathers its parameters and runs the same forward",
                construct,
                sites,
                edits=(Edit(context.syntax.find(attribute, cst.Attribute), _receiver),),
            )
            continue
        message = "pass the model itself: its forward alone does not gather parameters"
        if called:
            message = "call the model: its forward alone does not gather parameters"
        yield Draft(RULE, attribute, Action.MANUAL, message, construct, sites, mark=True)


def _receiver(updated: cst.CSTNode) -> Edited:
    assert isinstance(updated, cst.Attribute)
    return Edited(updated.value)


Command = command(find, __doc__ or "")
