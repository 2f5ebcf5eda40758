"""`model.no_sync()`: gradient accumulation without communication.

FSDP2 has a switch in its place, `set_requires_gradient_sync`, which stays as it is left. The runtime's `no_sync(model)` is a
context that turns the switch off and on again, and fits every form in which programs write it. The bare switch in front of
the backward would do for one loop alone: after an error, or an accumulation that is cut short, it stays off for every
other backward of the model, and the optimizer then does nothing without an error.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.arguments.mixed_precision import dtypes
from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.models import Site

RULE = Rule(
    "FSDP311",
    "no-sync",
    "model.no_sync() becomes no_sync(model)",
    """Inside FSDP1's `no_sync`, gradients are kept and not reduced. `set_requires_gradient_sync(False)` does that under FSDP2
and stays in force until it is set back; forgotten, the optimizer does nothing, and says nothing. `no_sync(model)` sets it
back, also after an error, and hands other models (DistributedDataParallel) to their own `no_sync`. Gradients that were not
reduced yet are out of reach for `zero_grad()`: see FSDP314.""",
    (
        Example(
            "every micro-batch but the last",
            """\
from contextlib import nullcontext

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
for step, batch in enumerate(batches):
    with nullcontext() if step % 4 == 3 else model.no_sync():
        model(batch).backward()
""",
            """\
from contextlib import nullcontext

from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import fully_shard

fully_shard(model)
for step, batch in enumerate(batches):
    with nullcontext() if step % 4 == 3 else no_sync(model):
        model(batch).backward()
""",
        ),
        Example(
            "not called yet",
            """\
import functools
from contextlib import nullcontext

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
context = nullcontext if last else model.no_sync
""",
            """\
import functools
from contextlib import nullcontext

from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import fully_shard

fully_shard(model)
context = nullcontext if last else functools.partial(no_sync, model)
""",
        ),
        Example(
            "several models, a stack, and the class's own function",
            """\
from contextlib import ExitStack

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

actor, critic = FSDP(actor), FSDP(critic)
with actor.no_sync(), FSDP.no_sync(critic):
    loss.backward()
with ExitStack() as stack:
    for model in (actor, critic):
        stack.enter_context(model.no_sync())
    loss.backward()
""",
            """\
from contextlib import ExitStack

from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import fully_shard

actor, critic = fully_shard(actor), fully_shard(critic)
with no_sync(actor), no_sync(critic):
    loss.backward()
with ExitStack() as stack:
    for model in (actor, critic):
        stack.enter_context(no_sync(model))
    loss.backward()
""",
        ),
        Example(
            "returned, and passed on",
            """\
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, net):
        self.model = FSDP(net)
        self.contexts = [partial(self.model.no_sync)]

    def accumulate(self):
        return self.model.no_sync()
""",
            """\
from functools import partial

from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, net):
        self.model = fully_shard(net)
        self.contexts = [partial(no_sync, self.model)]

    def accumulate(self):
        return no_sync(self.model)
""",
        ),
        Example(
            "a branch for DistributedDataParallel",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

model = FSDP(model) if sharded else DDP(model)
if isinstance(model, DDP):
    with model.no_sync():
        loss.backward()
else:
    with model.no_sync():
        loss.backward()
""",
            """\
from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

model = fully_shard(model) if sharded else DDP(model)
if isinstance(model, DDP):
    with model.no_sync():
        loss.backward()
else:
    with no_sync(model):
        loss.backward()
""",
        ),
        Example(
            "another object's",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
with accelerator.no_sync(other):
    loss.backward()
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
with accelerator.no_sync(other):
    loss.backward()
""",
            quiet=True,
        ),
    ),
)
KEPT_GATHERED = Rule(
    "FSDP312",
    "no-sync-shard-grad-op",
    "no_sync(model) keeps the parameters of SHARD_GRAD_OP gathered as FSDP1 did",
    """With SHARD_GRAD_OP, FSDP1 frees parameters after a backward only if it reduced the gradients (`_runtime_utils.py`,
`_should_free_in_backward`): the next micro-batch gathers nothing. FSDP2 frees them after every backward unless
`set_reshard_after_backward(False)` says otherwise, at an all-gather a unit and micro-batch. `no_sync(model)` switches that
off and on again together with the synchronisation, for the units that stay gathered after forward.""",
    (
        Example(
            "accumulation",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

model = FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
with model.no_sync():
    loss.backward()
""",
            """\
from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import fully_shard

fully_shard(model, reshard_after_forward=False)
with no_sync(model):
    loss.backward()
""",
        ),
    ),
)
REDUCED_APART = Rule(
    "FSDP313",
    "no-sync-reduce-dtype",
    "FSDP2 accumulates in reduce_dtype where FSDP1 accumulated in param_dtype",
    """Under `no_sync` FSDP1 adds up gradients in the type in which backward makes them: `param_dtype`, or the parameters' own.
FSDP2 adds them up in `reduce_dtype` (`_fully_shard/_fsdp_param.py`, `to_accumulated_grad_if_needed`). With a higher
`reduce_dtype`, such as float32 over bfloat16, the sum is more precise and takes more memory; with a lower one it is less
precise. The training is not the same bit by bit in either case; without `no_sync`, or with one type for both, it is.""",
    (
        Example(
            "reduced in a higher precision",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

model = FSDP(model, mixed_precision=MixedPrecision(torch.bfloat16, torch.float32))
with model.no_sync():
    loss.backward()
""",
            """\
import torch
from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

fully_shard(
    model,
    mp_policy=MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    ),
)
with no_sync(model):
    loss.backward()
""",
            message="more precise",
        ),
        Example(
            "reduced in a lower precision",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

model = FSDP(model, mixed_precision=MixedPrecision(reduce_dtype=torch.bfloat16))
with model.no_sync():
    loss.backward()
""",
            """\
import torch
from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
with no_sync(model):
    loss.backward()
""",
            message="less precise",
        ),
        Example(
            "one type for both",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

model = FSDP(model, mixed_precision=MixedPrecision(torch.bfloat16, torch.bfloat16))
with model.no_sync():
    loss.backward()
""",
            """\
import torch
from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

fully_shard(
    model,
    mp_policy=MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16
    ),
)
with no_sync(model):
    loss.backward()
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE, KEPT_GATHERED, REDUCED_APART)

_MESSAGE = "no_sync(model) turns gradient synchronisation off and on again"
_STAY_GATHERED = frozenset({"SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"})
_WIDTHS = {"float64": 8, "double": 8, "float32": 4, "float": 4}  # bytes; 2 for all others


def find(context: Context) -> Iterator[Draft]:
    """`no_sync` on expressions that hold an FSDP1 model, and of the class itself."""
    for attribute in context.module.attributes:
        sites = context.concerned(attribute) if attribute.attr == "no_sync" else None
        if sites is None:
            continue
        name, needs = context.name(RUNTIME, "no_sync", use=attribute)
        call = context.module.parents[attribute]
        gone: tuple[ast.AST, ...] = ()
        if context.fsdp1(attribute.value):
            edit, gone = context.rename(attribute, name), (attribute.value,)
        elif isinstance(call, ast.Call) and call.func is attribute:
            edit = _called(context, call, name)
        elif isinstance(call, ast.Call) and _is_partial(context, call, attribute):
            edit = _in_partial(context, call, name)
        else:
            partial, more = context.partial(attribute)
            edit = _uncalled(context, attribute, name, partial)
            needs = (*needs, *more)
        rule, message = _case(context, sites)
        yield Draft(
            rule,
            attribute,
            Action.RUNTIME,
            message,
            f"{context.source(attribute)}",
            sites,
            edits=(edit,),
            needs=needs,
            gone=gone,
        )


def _case(context: Context, sites: frozenset[Site]) -> tuple[Rule, str]:
    """What is to be said of the models, as far as their constructors show it."""
    found = [plan.constructor for plan in context.plans_of(sites)]
    for constructor in found:
        own, reduced = dtypes(constructor)
        if reduced is not None and reduced != own:
            sides = _names(own, reduced)
            wider = _width(reduced) - _width(own or "float32")
            compared = "more precise" if wider > 0 else "less precise" if wider else "different"
            if sides is None:
                sides, compared = ("reduce_dtype", "param_dtype"), "the sums may differ"
            message = f"FSDP2 accumulates in {sides[0]}, FSDP1 did in {sides[1]}: {compared}"
            return REDUCED_APART, f"{_MESSAGE}; {message}"
    for constructor in found:
        strategy = constructor.value("sharding_strategy")
        if strategy and constructor.member(strategy, "ShardingStrategy") in _STAY_GATHERED:
            return KEPT_GATHERED, f"{_MESSAGE}, and leaves parameters gathered in between"
    return RULE, _MESSAGE


def _names(own: str | None, reduced: str) -> tuple[str, str] | None:
    """The types in which FSDP2 and FSDP1 accumulate; None where a name does not say which type it is."""
    types = [reduced] if own is None else [reduced, own]
    if not all(re.fullmatch(r"(torch\.)?(b?float(16|32|64)?|half|double)", name) for name in types):
        return None
    return reduced, own or "the parameters' own type"


def _width(dtype: str) -> int:
    return _WIDTHS.get(dtype.rpartition(".")[2], 2)


def _is_partial(context: Context, call: ast.Call, attribute: ast.Attribute) -> bool:
    """Whether a call is `functools.partial(model.no_sync)`."""
    return call.args[:1] == [attribute] and context.project.dotted(call.func, context.module) == {
        "functools.partial"
    }


def _in_partial(context: Context, call: ast.Call, name: str) -> Edit:
    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.Call)
        first, *others = updated.args
        assert isinstance(first.value, cst.Attribute)
        function = cst.Arg(cst.parse_expression(name))
        return Edited(
            updated.with_changes(
                args=[function, first.with_changes(value=first.value.value), *others]
            )
        )

    return Edit(context.syntax.find(call, cst.Call), apply)


def _called(context: Context, call: ast.Call, name: str) -> Edit:
    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.Call)
        assert isinstance(updated.func, cst.Attribute)
        model = cst.Arg(updated.func.value)
        return Edited(
            updated.with_changes(func=cst.parse_expression(name), args=[model, *updated.args])
        )

    return Edit(context.syntax.find(call, cst.Call), apply)


def _uncalled(context: Context, attribute: ast.Attribute, name: str, partial: str) -> Edit:
    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.Attribute)
        arguments = [cst.Arg(cst.parse_expression(name)), cst.Arg(updated.value)]
        return Edited(cst.Call(cst.parse_expression(partial), arguments))

    return Edit(context.syntax.find(attribute, cst.Attribute), apply)


Command = command(find, __doc__ or "")
