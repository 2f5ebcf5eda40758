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
RULES = (RULE,)

_TORCH = "torch.nn.utils.clip_grad_norm_"


def find(context: Context) -> Iterator[Draft]:
    """`clip_grad_norm_` called on expressions that hold an FSDP1 model."""
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


def _plain_will_do(context: Context, attribute: ast.Attribute, call: ast.Call) -> bool:
    """Whether torch's function does the same: result unused, finite norm, nothing ignored or offloaded."""
    if not isinstance(context.module.parents[call], ast.Expr):
        return False
    if len(call.args) > 1 or any(keyword.arg != "max_norm" for keyword in call.keywords):
        return False
    if not context.only_fsdp1(attribute.value):
        return False
    for site in context.sites(attribute.value):
        plan = context.plans.get(site.call) if site.call is not None else None
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
