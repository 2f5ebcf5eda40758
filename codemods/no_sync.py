"""`model.no_sync()`: gradient accumulation without communication.

FSDP2 has a switch in its place, `set_requires_gradient_sync`, which stays as it is left. The runtime's `no_sync(model)` is a
context that turns the switch off and on again, and fits every form in which programs write it.
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
    "FSDP311",
    "no-sync",
    "model.no_sync() becomes no_sync(model)",
    """Inside FSDP1's `no_sync`, gradients are kept and not reduced. `set_requires_gradient_sync(False)` does that under FSDP2
and stays in force until it is set back; forgotten, the optimizer does nothing, and says nothing. `no_sync(model)` sets it
back, also after an error, and with SHARD_GRAD_OP keeps parameters gathered between the skipped backwards as FSDP1 did. It
hands other models (DistributedDataParallel) to their own `no_sync`. With bfloat16 parameters and `reduce_dtype=float32`, FSDP2
accumulates in float32 where FSDP1 did in bfloat16: the numbers differ, for the better. Gradients that were not reduced yet
are out of reach for `zero_grad()`: a program that ends an epoch in the middle of an accumulation and zeroes gradients there
should call `discard_unsynced_gradients(model)` of the runtime as well.""",
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
    ),
)
RULES = (RULE,)

_MESSAGE = (
    "no_sync(model) turns gradient synchronisation off and on again; zero_grad() does not reach gradients of an accumulation"
    " that is cut short (discard_unsynced_gradients of the runtime does)"
)


def find(context: Context) -> Iterator[Draft]:
    """`no_sync` on expressions that hold an FSDP1 model."""
    for attribute in context.module.attributes:
        if attribute.attr != "no_sync":
            continue
        sites = context.sites(attribute.value)
        if not sites:
            continue
        name, needs = context.name(RUNTIME, "no_sync", use=attribute)
        call = context.module.parents[attribute]
        if isinstance(call, ast.Call) and call.func is attribute:
            edit = _called(context, call, name)
        else:
            partial, more = context.partial(attribute)
            edit = _uncalled(context, attribute, name, partial)
            needs = (*needs, *more)
        yield Draft(
            RULE,
            attribute,
            Action.RUNTIME,
            _MESSAGE,
            f"{context.source(attribute)}",
            sites,
            edits=(edit,),
            needs=needs,
        )


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
