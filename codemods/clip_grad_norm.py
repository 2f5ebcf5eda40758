"""`model.clip_grad_norm_(...)`: clipping by the norm over all ranks.

`torch.nn.utils.clip_grad_norm_` computes the global norm of sharded parameters, but returns it as a DTensor, whose `.item()`
is the local value for the infinity norm and which cannot be formatted. Where the result is used, or the case is one that
torch gets wrong, the runtime's function takes its place and returns a plain tensor.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.models import Site

RULE = Rule(
    "FSDP301",
    "clip-method",
    "model.clip_grad_norm_(c) becomes clip_grad_norm_(model.parameters(), c)",
    """With the result unused and a finite norm, `torch.nn.utils.clip_grad_norm_(model.parameters(), c)` clips as FSDP1 did, up
to the rounding of the norm. It returns a DTensor, though: `f"{norm:.3f}"` and `dist.all_reduce(norm)` fail, and with the
infinity norm `.item()` is the local value, or the call hangs where a rank holds an empty shard. It also fails on ignored
parameters beside sharded ones, and on offloaded gradients without a CPU backend. The runtime's `clip_grad_norm_` returns a
plain tensor and handles all of these.""",
    (
        Example(
            "result unused",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model.clip_grad_norm_(1.0)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
        ),
        Example(
            "result used",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
norm = model.clip_grad_norm_(max_norm=1.0)
""",
            """\
from fsdp_migrate.runtime import clip_grad_norm_
from torch.distributed.fsdp import fully_shard

fully_shard(model)
norm = clip_grad_norm_(model.parameters(), max_norm=1.0)
""",
        ),
    ),
)
LOCAL_NORM = Rule(
    "FSDP302",
    "clip-local-norm",
    "torch.nn.utils.clip_grad_norm_ on an FSDP1 model clipped by each rank's own norm",
    """FSDP1's parameters are local shards: `torch.nn.utils.clip_grad_norm_(model.parameters(), c)` computed a norm of its own
on every rank and clipped by it; `model.clip_grad_norm_` was the right call. FSDP2's parameters are DTensors and the same line
computes the norm over all ranks. That is what was meant, and it changes the training. Where the result is used, it goes to
the runtime's function, which returns a plain tensor; where the model is offloaded as well, since that function sums on the
GPU.""",
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
    ),
)
RULES = (RULE, LOCAL_NORM)

_TORCH = "torch.nn.utils.clip_grad_norm_"


def find(context: Context) -> Iterator[Draft]:
    """`clip_grad_norm_` called on expressions that hold an FSDP1 model, and torch's function called on their parameters."""
    yield from _of_torch(context)
    for attribute in context.module.attributes:
        if attribute.attr != "clip_grad_norm_":
            continue
        sites = context.sites(attribute.value)
        if not sites:
            continue
        call = context.module.parents[attribute]
        if not isinstance(call, ast.Call) or call.func is not attribute:
            yield Draft(
                RULE,
                attribute,
                Action.MANUAL,
                "call clip_grad_norm_(model.parameters(), ...) of fsdp_migrate.runtime where this method is called",
                context.source(attribute),
                sites,
                mark=True,
            )
            continue
        plain = _plain_will_do(context, attribute, call)
        spelled = context.spelled(_TORCH, call) if plain else None
        name, needs = (
            (spelled, ()) if spelled else context.name(RUNTIME, "clip_grad_norm_", use=call)
        )
        yield Draft(
            RULE,
            attribute,
            Action.REWRITE if spelled else Action.RUNTIME,
            "torch's own clipping knows sharded parameters"
            if spelled
            else "the runtime's clipping returns a plain tensor, as FSDP1's did",
            context.source(attribute),
            sites,
            edits=(_edit(context, call, name),),
            needs=needs,
        )


def _of_torch(context: Context) -> Iterator[Draft]:
    """`torch.nn.utils.clip_grad_norm_(model.parameters(), ...)` on an FSDP1 model."""
    for call in context.module.calls:
        if not call.args or context.project.dotted(call.func, context.module) != {_TORCH}:
            continue
        sites = _model_of(context, call.args[0])
        if not sites or _is_other_branch(context, call):
            continue
        message = "clips by the norm over all ranks now; under FSDP1 each rank clipped by the norm of its own shards"
        construct = f"{context.source(call.func)}(...)"
        if isinstance(context.module.parents[call], ast.Expr) and not _is_offloaded(context, sites):
            yield Draft(LOCAL_NORM, call, Action.MANUAL, message, construct, sites)
            continue
        name, needs = context.name(RUNTIME, "clip_grad_norm_", use=call)
        edit = context.rename(call.func, name)
        yield Draft(
            LOCAL_NORM, call, Action.RUNTIME, message, construct, sites, edits=(edit,), needs=needs
        )


def _is_offloaded(context: Context, sites: frozenset[Site]) -> bool:
    """Whether gradients may be on the CPU, where torch's function has no backend to sum norms over NCCL."""
    plans = [context.plans.get(site.call) for site in sites if site.call is not None]
    return any(plan and not plan.constructor.is_none("cpu_offload") for plan in plans)


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
    """The model whose `parameters()` an argument is."""
    if not isinstance(argument, ast.Call) or not isinstance(argument.func, ast.Attribute):
        return frozenset()
    if argument.func.attr != "parameters":
        return frozenset()
    return context.sites(argument.func.value)


def _plain_will_do(context: Context, attribute: ast.Attribute, call: ast.Call) -> bool:
    """Whether torch's function does the same: result unused, finite norm, nothing ignored or offloaded."""
    if not isinstance(context.module.parents[call], ast.Expr):
        return False
    if len(call.args) > 1 or any(keyword.arg != "max_norm" for keyword in call.keywords):
        return False
    if not context.only_fsdp1(attribute.value):
        return False
    calls = [site.call for site in context.sites(attribute.value) if site.call is not None]
    if not calls:
        return False  # known by an annotation only: nothing is known of its arguments
    for constructor_call in calls:
        plan = context.plans.get(constructor_call)
        if plan is None or plan.constructor.splat:
            return False
        if not all(plan.constructor.is_none(n) for n in ("ignored_modules", "ignored_states")):
            return False
        offload = plan.constructor.value("cpu_offload")
        if offload is not None and not plan.constructor.is_none("cpu_offload"):
            return False
    return True


def _edit(context: Context, call: ast.Call, name: str) -> Edit:
    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.Call)
        assert isinstance(updated.func, cst.Attribute)
        parameters = cst.Call(cst.Attribute(updated.func.value, cst.Name("parameters")))
        arguments = list(updated.args)
        comma: cst.Comma | cst.MaybeSentinel = (
            cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            if arguments
            else cst.MaybeSentinel.DEFAULT
        )
        return Edited(
            updated.with_changes(
                func=cst.parse_expression(name), args=[cst.Arg(parameters, comma=comma), *arguments]
            )
        )

    return Edit(context.syntax.find(call, cst.Call), apply)


Command = command(find, __doc__ or "")
