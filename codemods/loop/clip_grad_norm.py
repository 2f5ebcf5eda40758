"""`model.clip_grad_norm_(...)`: clipping by the norm over all ranks.

`torch.nn.utils.clip_grad_norm_` computes the global norm of sharded parameters, but returns it as a DTensor, whose `.item()`
is the local value for the infinity norm and which cannot be formatted. Where the result is used, or the case is one that
torch gets wrong, the runtime's function takes its place and returns a plain tensor.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.loop.clip_branches import is_folded
from fsdp_migrate.codemods.loop.clip_calls import (
    TORCH,
    edit_of,
    ignores,
    norm_type,
    plain_will_do,
)
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
plain tensor and handles all of these. A method that is passed on, not called, is the runtime's function with the model.""",
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
        Example(
            "a finite norm",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model.clip_grad_norm_(max_norm=args.clip, norm_type=1.0)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=args.clip, norm_type=1.0)
""",
        ),
        Example(
            "formatted, logged and reduced",
            """\
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
print(f"{model.clip_grad_norm_(1.0):.3f}")
log(model.clip_grad_norm_(1.0).item())
dist.all_reduce(model.clip_grad_norm_(1.0))
""",
            """\
import torch.distributed as dist
from fsdp_migrate.runtime import clip_grad_norm_
from torch.distributed.fsdp import fully_shard

fully_shard(model)
print(f"{clip_grad_norm_(model.parameters(), 1.0):.3f}")
log(clip_grad_norm_(model.parameters(), 1.0).item())
dist.all_reduce(clip_grad_norm_(model.parameters(), 1.0))
""",
        ),
        Example(
            "the class's own function, and a method that is passed on",
            """\
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
FSDP.clip_grad_norm_(model, 1.0)
clip = model.clip_grad_norm_
""",
            """\
from functools import partial

from fsdp_migrate.runtime import clip_grad_norm_
from torch.distributed.fsdp import fully_shard

fully_shard(model)
clip_grad_norm_(model, 1.0)
clip = partial(clip_grad_norm_, model)
""",
        ),
        Example(
            "a method of the same name of something else",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Agent:
    def clip_grad_norm_(self, limit): ...


agent, model = Agent(), FSDP(model)
agent.clip_grad_norm_(1.0)
""",
            """\
from torch.distributed.fsdp import fully_shard


class Agent:
    def clip_grad_norm_(self, limit): ...


agent, model = Agent(), fully_shard(model)
agent.clip_grad_norm_(1.0)
""",
            quiet=True,
        ),
    ),
)
IGNORED = Rule(
    "FSDP304",
    "clip-ignored-parameters",
    "clipping a model with ignored parameters goes to the runtime",
    """Parameters that FSDP1 ignored stay plain tensors beside DTensors. `torch.nn.utils.clip_grad_norm_` refuses the mixture
(`aten._foreach_norm got mixed torch.Tensor and DTensor`). The runtime's function takes the norm of each kind and adds them
up as FSDP1 did: of plain parameters each rank counts its own.""",
    (
        Example(
            "ignored modules",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, ignored_modules=[model.head])
model.clip_grad_norm_(1.0)
""",
            """\
from fsdp_migrate.runtime import clip_grad_norm_, shard_model

model = shard_model(model, ignored_modules=[model.head])
clip_grad_norm_(model.parameters(), 1.0)
""",
        ),
    ),
)
INFINITE = Rule(
    "FSDP305",
    "clip-infinity-norm",
    "clipping by the largest gradient goes to the runtime",
    """With `norm_type=inf`, `torch.nn.utils.clip_grad_norm_` returns a DTensor that is not reduced yet: `.item()` gives each
rank's own maximum. Where a parameter has fewer rows than there are ranks, the rank with an empty shard raises and the others
wait for it. The runtime's function takes the maximum over all ranks, as FSDP1 did, and skips empty shards.""",
    (
        Example(
            "in any spelling",
            """\
import math

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model.clip_grad_norm_(1.0, float("inf"))
model.clip_grad_norm_(1.0, norm_type=math.inf)
""",
            """\
import math

from fsdp_migrate.runtime import clip_grad_norm_
from torch.distributed.fsdp import fully_shard

fully_shard(model)
clip_grad_norm_(model.parameters(), 1.0, float("inf"))
clip_grad_norm_(model.parameters(), 1.0, norm_type=math.inf)
""",
        ),
    ),
)
RULES = (RULE, IGNORED, INFINITE)

_BY_RUNTIME = "the runtime's clipping returns a plain tensor, as FSDP1's did"


def find(context: Context) -> Iterator[Draft]:
    """`clip_grad_norm_` of expressions that hold an FSDP1 model, and of the class."""
    for attribute in context.module.attributes:
        sites = context.concerned(attribute) if attribute.attr == "clip_grad_norm_" else None
        if sites is None:
            continue
        call = context.module.parents[attribute]
        called = isinstance(call, ast.Call) and call.func is attribute
        method = not context.fsdp1(attribute.value)
        if isinstance(call, ast.Call) and called and method:
            if not is_folded(context, call):
                yield _of_method(context, attribute, call, sites)
            continue
        name, needs = context.name(RUNTIME, "clip_grad_norm_", use=attribute)
        edit = context.rename(attribute, name)
        if method:
            partial, more = context.partial(attribute)
            edit, needs = _passed_on(context, attribute, name, partial), (*needs, *more)
        yield Draft(
            RULE,
            attribute,
            Action.RUNTIME,
            _BY_RUNTIME,
            context.source(attribute),
            sites,
            edits=(edit,),
            needs=needs,
            gone=() if method else (attribute.value,),
        )


def _of_method(
    context: Context, attribute: ast.Attribute, call: ast.Call, sites: frozenset[Site]
) -> Draft:
    plain = plain_will_do(context, attribute, call)
    spelled = context.spelled(TORCH, call) if plain else None
    name, needs = (spelled, ()) if spelled else context.name(RUNTIME, "clip_grad_norm_", use=call)
    rule, message = RULE, "torch's own clipping knows sharded parameters"
    if not spelled:
        message = _BY_RUNTIME
    if norm_type(context, call) == math.inf:
        rule, message = INFINITE, "the runtime takes the maximum over all ranks, as FSDP1 did"
    if any(ignores(plan) for plan in context.plans_of(sites)):
        rule = IGNORED
        message = "the runtime clips ignored parameters beside sharded ones, as FSDP1 did"
    return Draft(
        rule,
        attribute,
        Action.REWRITE if spelled else Action.RUNTIME,
        message,
        context.source(attribute),
        sites,
        edits=(edit_of(context, call, name),),
        needs=needs,
    )


def _passed_on(context: Context, attribute: ast.Attribute, name: str, partial: str) -> Edit:
    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.Attribute)
        arguments = [cst.Arg(cst.parse_expression(name)), cst.Arg(updated.value)]
        return Edited(cst.Call(cst.parse_expression(partial), arguments))

    return Edit(context.syntax.find(attribute, cst.Attribute), apply)


Command = command(find, __doc__ or "")
