"""`model.no_sync()`: gradient accumulation without communication.

FSDP2 has a switch in its place, `set_requires_gradient_sync`, which stays as it is left. The runtime's `no_sync(model)` is a
context that turns the switch off and on again, and fits every form in which programs write it. The bare switch in front of
the backward would do for one loop alone: after an error, or an accumulation that is cut short, it stays off for every
other backward of the model, and the optimizer then does nothing without an error.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.loop.accumulation import KEPT_GATHERED, REDUCED_APART, difference
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Rule
from fsdp_migrate.findings import Action

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
RULES = (RULE, KEPT_GATHERED, REDUCED_APART)

_MESSAGE = "no_sync(model) turns gradient synchronisation off and on again"


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
            partial, imported = context.partial(attribute)
            edit = _uncalled(context, attribute, name, partial)
            needs = (*needs, *imported)
        rule, more = difference(context, sites) or (RULE, "")
        yield Draft(
            rule,
            attribute,
            Action.RUNTIME,
            f"{_MESSAGE}{more}",
            context.source(attribute),
            sites,
            edits=(edit,),
            needs=needs,
            gone=gone,
        )


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
