"""`torch.nn.utils.clip_grad_norm_(model.parameters(), ...)` on an FSDP1 model: it clipped each rank by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.loop.clip_branches import is_folded
from fsdp_migrate.codemods.loop.clip_calls import is_torch, torch_can
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.models import Site
from fsdp_migrate.index.values import origin

RULE = Rule(
    "FSDP302",
    "clip-local-norm",
    "torch.nn.utils.clip_grad_norm_ on an FSDP1 model clipped by each rank's own norm",
    """FSDP1's parameters are local shards: `torch.nn.utils.clip_grad_norm_(model.parameters(), c)` computed a norm of its own
on every rank and clipped by it; `model.clip_grad_norm_` was the right call. FSDP2's parameters are DTensors and the same line
computes the norm over all ranks. That is what was meant, and it changes the training. Where the result is used, it goes to
the runtime's function, which returns a plain tensor; where the model is offloaded or has ignored parameters, or the norm
may be infinite, as well, since torch's function fails there. Clipping by value is the same: each gradient is clipped by
itself.""",
    (
        Example(
            "result unused",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
            message="over all ranks",
        ),
        Example(
            "result used",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.utils import clip_grad_norm_

model = FSDP(model)
norm = clip_grad_norm_(model.parameters(), 1.0)
""",
            """\
from fsdp_migrate.runtime import clip_grad_norm_ as fsdp_clip_grad_norm_
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import clip_grad_norm_

fully_shard(model)
norm = fsdp_clip_grad_norm_(model.parameters(), 1.0)
""",
            message="over all ranks",
        ),
        Example(
            "gradients on the CPU, where torch's function needs a backend",
            """\
import torch
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

model = FSDP(model, cpu_offload=CPUOffload(offload_params=True))
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
            """\
import torch
from fsdp_migrate.runtime import clip_grad_norm_
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

fully_shard(model, offload_policy=CPUOffloadPolicy())
clip_grad_norm_(model.parameters(), 1.0)
""",
        ),
        Example(
            "a list of parameters",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
trained = [p for p in model.parameters() if p.requires_grad]
norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
""",
            """\
import torch
from fsdp_migrate.runtime import clip_grad_norm_
from torch.distributed.fsdp import fully_shard

fully_shard(model)
trained = [p for p in model.parameters() if p.requires_grad]
norm = clip_grad_norm_(trained, 1.0)
""",
            message="over all ranks",
        ),
        Example(
            "by value",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)


def find(context: Context) -> Iterator[Draft]:
    """`torch.nn.utils.clip_grad_norm_(model.parameters(), ...)` on an FSDP1 model."""
    for call in context.module.calls:
        if not call.args or not is_torch(context, call):
            continue
        sites = _model_of(context, call.args[0])
        if not sites or is_folded(context, call) or _is_other_branch(context, call):
            continue
        message = "clips by the norm over all ranks now; under FSDP1 each rank clipped by the norm of its own shards"
        construct = f"{context.source(call.func)}(...)"
        if isinstance(context.module.parents[call], ast.Expr) and torch_can(context, call, sites):
            yield Draft(RULE, call, Action.MANUAL, message, construct, sites)
            continue
        name, needs = context.name(RUNTIME, "clip_grad_norm_", use=call)
        edit = context.rename(call.func, name)
        yield Draft(
            RULE, call, Action.RUNTIME, message, construct, sites, edits=(edit,), needs=needs
        )


def _is_other_branch(context: Context, call: ast.Call) -> bool:
    """Whether another branch of the same `if` clips by the model's own method: this one is for other models."""
    return any(
        isinstance(inner, ast.Attribute)
        and inner.attr == "clip_grad_norm_"
        and bool(context.sites(inner.value))
        for parent in context.module.ancestors(call)
        if isinstance(parent, ast.If)
        for inner in ast.walk(parent)
    )


def _model_of(context: Context, argument: ast.expr) -> frozenset[Site]:
    """The model whose `parameters()` an argument is: called, in a list, filtered, or bound to a name before."""
    found = origin(context.project, argument, context.module)
    made = argument if found is None or found.module is not context.module else found.node
    if isinstance(made, ast.ListComp | ast.GeneratorExp):
        return _model_of(context, made.generators[0].iter)
    if isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute):
        return context.sites(made.func.value) if made.func.attr == "parameters" else frozenset()
    if (
        isinstance(made, ast.Call)
        and isinstance(made.func, ast.Name)
        and made.func.id in {"list", "tuple", "filter"}
        and made.args
    ):
        return _model_of(context, made.args[-1])
    return frozenset()


Command = command(find, __doc__ or "")
