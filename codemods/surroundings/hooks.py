"""Hooks on parameters: `p.register_hook(...)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.codemods.surroundings.parameters import Parameters
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP506",
    "parameter-hook",
    "hooks on sharded parameters never fire; register_post_accumulate_grad_hook does",
    """Measured with torch 2.13, calls of hooks that were registered after wrapping, for one backward:

| | `register_hook` | `register_post_accumulate_grad_hook` |
|---|---|---|
| FSDP1, `use_orig_params=True` | never | never |
| FSDP1, flat parameters (the default) | once a unit, with the whole gradient before it was reduced | once a unit |
| FSDP2 | **never** | once a parameter, with the shard of the reduced gradient |

A hook that clips or scales gradients of flat parameters would be lost without an error, so it keeps the model from being
migrated: `register_post_accumulate_grad_hook` gets the parameter and can change its `grad`, a DTensor that has been
reduced. With `use_orig_params=True` nothing is lost, and the message says so. Hooks that were registered before wrapping
fire in neither version (torchrec#4268).""",
    (
        Example(
            "gradients of flat parameters, clamped by a hook",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
for p in model.parameters():
    p.register_hook(lambda grad: grad.clamp(-1, 1))
""",
            message="register_post_accumulate_grad_hook",
        ),
        Example(
            "a hook that never fired",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, use_orig_params=True)
for p in model.parameters():
    p.register_hook(print)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
for p in model.parameters():
    # fsdp-migrate: FSDP506 by hand: never fires, nor did it under FSDP1: register_post_accumulate_grad_hook does
    p.register_hook(print)
""",
            message="nor did it under FSDP1",
        ),
        Example(
            "a hook that fires now",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, use_orig_params=True)
for p in model.parameters():
    p.register_post_accumulate_grad_hook(step)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
for p in model.parameters():
    # fsdp-migrate: FSDP506 by hand: fires for every parameter, after its gradient is reduced: FSDP1's never did, or once a unit
    p.register_post_accumulate_grad_hook(step)
""",
            message="fires for every parameter",
        ),
        Example(
            "hooks on outputs, and on modules",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model.register_forward_hook(print)
output = model(batch)
output.register_hook(print)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
model.register_forward_hook(print)
output = model(batch)
output.register_hook(print)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_LOST = (
    "never fires on FSDP2's parameters: register_post_accumulate_grad_hook does, with the reduced"
    " gradient's shard"
)
_NEVER = "never fires, nor did it under FSDP1: register_post_accumulate_grad_hook does"
_FIRES = (
    "fires for every parameter, after its gradient is reduced: FSDP1's never did, or once a unit"
)


def find(context: Context, parameters: Parameters) -> Iterator[Draft]:
    """Hooks that are registered on parameters of FSDP1 models."""
    flat = {
        plan.site
        for plan in context.plans.values()
        if plan.constructor.constant("use_orig_params", False) is not True
    }
    for node, held in parameters.of(context):
        around = context.module.parents[node]
        if not isinstance(around, ast.Attribute):
            continue
        if around.attr == "register_hook":
            lost = bool(held.sites & flat)
            message, construct = _LOST if lost else _NEVER, ".register_hook"
            yield Draft(
                RULE, node, Action.MANUAL, message, construct, held.sites, silent=lost, mark=True
            )
        elif around.attr == "register_post_accumulate_grad_hook":
            construct = f".{around.attr}"
            yield Draft(RULE, node, Action.MANUAL, _FIRES, construct, held.sites, mark=True)
