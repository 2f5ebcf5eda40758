"""`_apply_optimizer_in_backward`: an optimizer that steps while the backward runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import dotted, values_given
from fsdp_migrate.codemods.optimizers.kept_parameters import TAKING, unchained
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.codemods.surroundings.parameters import Parameters
from fsdp_migrate.findings import Action
from fsdp_migrate.index.models import Site

RULE = Rule(
    "FSDP520",
    "optimizer-in-backward",
    "_apply_optimizer_in_backward never steps under FSDP2",
    """`torch.distributed.optim._apply_optimizer_in_backward` hangs an optimizer on the gradient accumulation of each
parameter. FSDP1 with `use_orig_params=True` ran it, called before or after wrapping. FSDP2's sharded parameters take no
part in the backward, so it never runs, and **the loss stays where it is, without an error** (measured with torch 2.13 on
two ranks). The model is held back until the optimizers are stepped by `register_post_accumulate_grad_hook` of the sharded
parameters, or by an ordinary optimizer after the backward. With flat parameters FSDP1 refused the call after wrapping.""",
    (
        Example(
            "after wrapping",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.optim import _apply_optimizer_in_backward

model = FSDP(model, use_orig_params=True)
_apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
""",
            message="register_post_accumulate_grad_hook",
        ),
        Example(
            "before wrapping",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.optim import _apply_optimizer_in_backward

_apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
model = FSDP(model, use_orig_params=True)
""",
            message="register_post_accumulate_grad_hook",
        ),
        Example(
            "of another model",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.optim import _apply_optimizer_in_backward

model = FSDP(model, use_orig_params=True)
_apply_optimizer_in_backward(torch.optim.SGD, teacher.parameters(), {"lr": 0.1})
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import _apply_optimizer_in_backward

fully_shard(model)
_apply_optimizer_in_backward(torch.optim.SGD, teacher.parameters(), {"lr": 0.1})
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_NAME = "_apply_optimizer_in_backward"
_MESSAGE = (
    "never steps under FSDP2, without an error: step in register_post_accumulate_grad_hook of the"
    " sharded parameters, or after the backward"
)


def find(context: Context, parameters: Parameters) -> Iterator[Draft]:
    """Calls of the function with an FSDP1 model's parameters, taken before or after wrapping."""
    for call in context.module.calls:
        paths = context.project.dotted(call.func, context.module)
        if not any(path.endswith(f".{_NAME}") for path in paths):
            continue
        sites = frozenset(
            site for value in values_given(call) for site in _of(context, value, parameters)
        )
        if sites:
            yield Draft(RULE, call, Action.MANUAL, _MESSAGE, f"{_NAME}(...)", sites, silent=True)


def _of(context: Context, value: ast.expr, parameters: Parameters) -> Iterator[Site]:
    """The models whose parameters a value is: a sharded one's, or one's that is sharded under this name."""
    held = parameters.several.get(value) or parameters.held.get(value)
    if held is not None:
        yield from held.sites
        return
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        return
    taken = dotted(value.func.value) if value.func.attr in TAKING else ""
    for plan in context.plans.values():
        constructor = plan.constructor
        if taken and constructor.model is not None and constructor.context.module is context.module:
            if dotted(unchained(constructor.model)) == taken:
                yield plan.site
