"""Parameters that are unfrozen after wrapping: `p.requires_grad = True`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.codemods.surroundings.parameters import Parameters
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP512",
    "unfrozen-after-sharding",
    "with mixed precision, a parameter that was frozen in the first forward cannot be unfrozen later",
    """FSDP2 decides in the first forward in which precision the gradients of a parameter are kept. One that was frozen then
and is unfrozen later fails in the backward, if `param_dtype` is another precision: `attempting to assign a gradient with
dtype 'c10::BFloat16' to a tensor with grad_dtype 'Float'` (measured with torch 2.13 on two ranks; pytorch#186998). FSDP1
with `use_orig_params=True` trained on. Without mixed precision, or if the parameter is unfrozen before the first forward,
both are the same to the last bit. Run the first forward with everything trainable, and freeze then.""",
    (
        Example(
            "a part that is trained later",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

model = FSDP(model, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16), use_orig_params=True)
train(model)
for p in model.parameters():
    p.requires_grad = True
""",
            """\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
train(model)
for p in model.parameters():
    # fsdp-migrate: FSDP512 by hand: fails in backward if it was frozen in the first forward: freeze after that
    p.requires_grad = True
""",
            message="freeze after that",
        ),
        Example(
            "full precision, freezing, and another model",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

model = FSDP(model, use_orig_params=True)
for p in model.parameters():
    p.requires_grad = True
low = FSDP(low, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16), use_orig_params=True)
for p in low.parameters():
    p.requires_grad_(False)
for p in teacher.parameters():
    p.requires_grad_(True)
""",
            """\
import torch
from fsdp_migrate.runtime import MixedPrecision, shard_model
from torch.distributed.fsdp import fully_shard

fully_shard(model)
for p in model.parameters():
    p.requires_grad = True
low = shard_model(low, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
for p in low.parameters():
    p.requires_grad_(False)
for p in teacher.parameters():
    p.requires_grad_(True)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_MESSAGE = "fails in backward if it was frozen in the first forward: freeze after that"


def find(context: Context, parameters: Parameters) -> Iterator[Draft]:
    """Parameters of models in mixed precision that are made to require gradients."""
    low = {
        plan.site
        for plan in context.plans.values()
        if not plan.constructor.is_none("mixed_precision")
    }
    for node, held in parameters.of(context):
        around = context.module.parents[node]
        if held.sites & low and isinstance(around, ast.Attribute) and _unfreezes(context, around):
            construct = f".{around.attr}"
            yield Draft(RULE, node, Action.MANUAL, _MESSAGE, construct, held.sites, mark=True)


def _unfreezes(context: Context, attribute: ast.Attribute) -> bool:
    parent = context.module.parents[attribute]
    if attribute.attr == "requires_grad" and isinstance(parent, ast.Assign):
        given: ast.expr | None = parent.value if attribute in parent.targets else None
        return isinstance(given, ast.Constant) and given.value is True
    if attribute.attr != "requires_grad_" or not isinstance(parent, ast.Call):
        return False
    given = parent.args[0] if parent.args else None
    return given is None or (isinstance(given, ast.Constant) and given.value is True)
