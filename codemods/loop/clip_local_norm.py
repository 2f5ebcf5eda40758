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
            "the way of other models",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def clip(model: FSDP, limit, sharded):
    if sharded:
        return model.clip_grad_norm_(limit)
    return torch.nn.utils.clip_grad_norm_(model.parameters(), limit)


model = FSDP(model)
method = getattr(model, "clip_grad_norm_", None)
if method is not None:
    method(1.0)
else:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
            """\
from functools import partial

import torch
from fsdp_migrate.runtime import clip_grad_norm_
from torch.distributed.fsdp import FSDPModule, fully_shard


def clip(model: FSDPModule, limit, sharded):
    if sharded:
        return clip_grad_norm_(model.parameters(), limit)
    return torch.nn.utils.clip_grad_norm_(model.parameters(), limit)


fully_shard(model)
method = (
    partial(clip_grad_norm_, model)
    if isinstance(model, FSDPModule)
    else getattr(model, "clip_grad_norm_", None)
)
if method is not None:
    method(1.0)
else:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
            quiet=True,
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

_METHOD = "clip_grad_norm_"
_ENDING = (ast.Return, ast.Raise, ast.Continue, ast.Break)


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
    """Whether another way than this one clips by the model's own method: this one is for other models."""
    node: ast.AST = call
    for parent in context.module.ancestors(call):
        if any(_clips(context, way) for way in _other_ways(parent, node)):
            return True
        node = parent
    return False


def _other_ways(parent: ast.AST, node: ast.AST) -> Iterator[list[ast.AST]]:
    """What runs in place of a node of a decision, or of a statement that it ends above in the same block."""
    if isinstance(parent, ast.IfExp):
        yield [parent.orelse if node is parent.body else parent.body]
    elif isinstance(parent, ast.If):
        yield [*(parent.orelse if node in parent.body else parent.body)]
    for block in (getattr(parent, "body", None), getattr(parent, "orelse", None)):
        if isinstance(block, list) and node in block:
            for above in block[: block.index(node)]:
                if isinstance(above, ast.If) and isinstance(above.body[-1], _ENDING):
                    yield [*above.body]


def _clips(context: Context, way: list[ast.AST]) -> bool:
    """Whether a model is clipped by its own method: called, or read into a name that is called."""
    for inner in (inner for node in way for inner in ast.walk(node)):
        if isinstance(inner, ast.Attribute) and inner.attr == _METHOD:
            if context.sites(inner.value):
                return True
        elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name):
            made = origin(context.project, inner.func, context.module)
            if made is not None and made.node is not inner.func and _is_read(made.node):
                return True
    return False


def _is_read(value: ast.AST | None) -> bool:
    """Whether a value is `model.clip_grad_norm_`, or `getattr` of it."""
    if isinstance(value, ast.Attribute):
        return value.attr == _METHOD
    return (
        isinstance(value, ast.Call)
        and ast.unparse(value.func) == "getattr"
        and any(isinstance(a, ast.Constant) and a.value == _METHOD for a in value.args)
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
