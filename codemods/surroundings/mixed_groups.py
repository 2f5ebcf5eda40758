"""Optimizers of models with ignored parameters: DTensors and plain tensors in one group."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.expressions import given_for
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Rule
from fsdp_migrate.codemods.surroundings.parameters import Parameters
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP508",
    "mixed-parameter-groups",
    "ignored parameters get groups of their own in the optimizer",
    """Parameters of `ignored_modules` and `ignored_states` stay plain tensors among DTensors. An optimizer of `torch.optim`
with `foreach=True`, its default on CUDA, or `fused=True` steps a whole group at once, and fails on the mixture:
`aten._foreach_... got mixed torch.Tensor and DTensor` (torch 2.13; its default on the CPU is one by one, which works).
`separate_parameters` of the runtime splits each group in two with the same options. The steps are the same to the last bit;
the optimizer has more groups, which counts where groups are told apart by their number. Under FSDP1 all were plain.""",
    (
        Example(
            "an ignored part",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, ignored_modules=[model.router])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
""",
            """\
import torch
from fsdp_migrate.runtime import separate_parameters, shard_model

model = shard_model(model, ignored_modules=[model.router])
optimizer = torch.optim.AdamW(separate_parameters(model.parameters()), lr=0.1)
""",
            message="groups of their own",
        ),
        Example(
            "groups",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, ignored_states=list(model.router.parameters()))
groups = [{"params": model.parameters(), "lr": 0.1}]
optimizer = torch.optim.AdamW(groups)
""",
            """\
import torch
from fsdp_migrate.runtime import separate_parameters, shard_model

model = shard_model(model, ignored_states=list(model.router.parameters()))
groups = [{"params": model.parameters(), "lr": 0.1}]
optimizer = torch.optim.AdamW(separate_parameters(groups))
""",
            message="groups of their own",
        ),
        Example(
            "nothing is ignored, or all are stepped one by one",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, ignored_modules=None)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
critic = FSDP(critic, ignored_modules=[critic.router])
another = torch.optim.AdamW(critic.parameters(), lr=0.1, foreach=False)
""",
            """\
import torch
from fsdp_migrate.runtime import shard_model
from torch.distributed.fsdp import fully_shard

fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
critic = shard_model(critic, ignored_modules=[critic.router])
another = torch.optim.AdamW(critic.parameters(), lr=0.1, foreach=False)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_MESSAGE = "ignored parameters are plain tensors among DTensors: separate_parameters gives them groups of their own"


def find(context: Context, parameters: Parameters) -> Iterator[Draft]:
    """Optimizers of torch's that are given the parameters of a model of which some are ignored."""
    ignoring = {
        plan.site
        for plan in context.plans.values()
        if not (
            plan.constructor.is_none("ignored_modules")
            and plan.constructor.is_none("ignored_states")
        )
    }
    for call, held in parameters.optimizers.items():
        if held.module is not context.module or not held.sites & ignoring:
            continue
        paths = context.project.dotted(call.func, context.module)
        if not any(path.startswith("torch.optim.") for path in paths) or _one_by_one(call):
            continue
        construct = f"{context.source(call.func)}(...)"
        given = given_for(call, "params", 0)
        edit = None if given is None else _edit(context, given)
        if edit is None:
            yield Draft(RULE, call, Action.MANUAL, _MESSAGE, construct, held.sites, mark=True)
            continue
        _, needs = context.name(RUNTIME, "separate_parameters", use=call)
        yield Draft(
            RULE,
            call,
            Action.RUNTIME,
            _MESSAGE,
            construct,
            held.sites,
            edits=(edit,),
            needs=needs,
        )


def _one_by_one(call: ast.Call) -> bool:
    foreach, fused = given_for(call, "foreach"), given_for(call, "fused")
    is_off = isinstance(foreach, ast.Constant) and foreach.value is False
    return is_off and (fused is None or (isinstance(fused, ast.Constant) and not fused.value))


def _edit(context: Context, given: ast.expr) -> Edit | None:
    """What is given goes through the function; None where no node stands at its place, as with a bare generator."""
    name, _ = context.name(RUNTIME, "separate_parameters", use=given)
    try:
        node = context.syntax.find(given, cst.BaseExpression)
    except LookupError:
        return None

    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.BaseExpression)
        return Edited(cst.Call(cst.parse_expression(name), [cst.Arg(updated)]))

    return Edit(node, apply)
