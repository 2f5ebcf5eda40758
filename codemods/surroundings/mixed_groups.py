"""Optimizers of models with ignored parameters: DTensors and plain tensors in one group."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.expressions import given_for
from fsdp_migrate.codemods.plan import Plan
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.codemods.surroundings.parameters import Parameters
from fsdp_migrate.codemods.surroundings.through import through
from fsdp_migrate.findings import Action
from fsdp_migrate.index.values import origins

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
            "what is ignored is frozen",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

frozen = [p for p in model.parameters() if not p.requires_grad]
model = FSDP(model, ignored_states=frozen)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
""",
            """\
import torch
from fsdp_migrate.runtime import shard_model

frozen = [p for p in model.parameters() if not p.requires_grad]
model = shard_model(model, ignored_states=frozen)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
""",
            quiet=True,
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
        if any(_is_trained(plan, name) for name in ("ignored_modules", "ignored_states"))
    }
    for call, held in parameters.optimizers.items():
        if held.module is not context.module or not held.sites & ignoring:
            continue
        paths = context.project.dotted(call.func, context.module)
        if not any(path.startswith("torch.optim.") for path in paths) or _one_by_one(call):
            continue
        construct = f"{context.source(call.func)}(...)"
        given = given_for(call, "params", 0)
        name, needs = context.name(RUNTIME, "separate_parameters", use=call)
        edit = None if given is None else through(context, given, name)
        if edit is None:
            yield Draft(RULE, call, Action.MANUAL, _MESSAGE, construct, held.sites, mark=True)
            continue
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


def _is_trained(plan: Plan, name: str) -> bool:
    """Whether parameters are ignored that have gradients: not those that are ignored because they are frozen."""
    constructor = plan.constructor
    value = constructor.value(name)
    if value is None or constructor.is_none(name):
        return False
    made = origins(constructor.context.project, value, constructor.context.module)
    return not any(
        one.node and "not" in (text := ast.unparse(one.node)) and "requires_grad" in text
        for one in made
    )


def _one_by_one(call: ast.Call) -> bool:
    foreach, fused = given_for(call, "foreach"), given_for(call, "fused")
    is_off = isinstance(foreach, ast.Constant) and foreach.value is False
    return is_off and (fused is None or (isinstance(fused, ast.Constant) and not fused.value))
