"""Models that are made indirectly: `FSDP(model, **options)`, and `partial(FSDP, ...)` with its calls.

What is known only when the program runs goes to `shard_model`, which has FSDP1's signature.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

import libcst as cst

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.constructor_call import FORMER_NAMES, SIGNATURE
from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.edit.arguments import ArgumentEdits, edit_call
from fsdp_migrate.codemods.plan import Plan
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.models import Maker, Site

DYNAMIC = Rule(
    "FSDP004",
    "dynamic-constructor",
    "a call whose arguments are not in sight goes to shard_model",
    """`FSDP(model, **options)` gives arguments that no analysis can bind. `shard_model` has FSDP1's signature, so it takes
the call's place as it stands.

`functools.partial(FSDP, ...)` becomes a partial application of `shard_model`. It is followed through names, attributes,
arguments and results to its calls: what these return are models like all others, with their checkpoints and optimizers.
Where it goes out of sight, to a function of another package, say, it is left alone, and so are the files around it: nothing
would say what becomes of the models that it makes there. Write a function instead: `def shard(model): return
shard_model(model, ...)`, with `shard_model` from `fsdp_migrate.runtime`.""",
    (
        Example(
            "arguments from a dictionary",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, **options)
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, **options)
""",
        ),
        Example(
            "a partial application, and what it makes",
            """\
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrapper(config):
    return partial(FSDP, sharding_strategy=config.strategy, use_orig_params=True)


model = wrapper(config)(model)
with model.no_sync():
    train(model)
""",
            """\
from functools import partial

from fsdp_migrate.runtime import no_sync, shard_model


def wrapper(config):
    return partial(shard_model, sharding_strategy=config.strategy, use_orig_params=True)


model = wrapper(config)(model)
with no_sync(model):
    train(model)
""",
        ),
        Example(
            "a partial application that goes out of sight",
            """\
from functools import partial

from other import build
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = build(partial(FSDP, use_orig_params=True))
""",
            message="a function that calls shard_model",
        ),
        Example(
            "a partial application of something else",
            """\
from functools import partial

from fairscale.nn import FullyShardedDataParallel as FSDP

shard = partial(FSDP, flatten_parameters=True)
""",
            quiet=True,
        ),
    ),
)
RULES = (DYNAMIC,)


def find(context: Context) -> Iterator[Draft]:
    """Partial applications of FSDP1's class, and the calls of them that make models."""
    for maker in context.models.makers:
        if maker.partial is None:
            continue
        if maker.module is context.module:
            yield _of_partial(context, maker, maker.partial)
        for module, call in maker.further:
            if module is context.module:
                yield from _further(context, maker, call)
        for module, call in maker.calls:
            if module is context.module:
                why = _why_not(maker, maker.partial)
                what = "the partial application"
                yield of_call(context, context.plans[call], DYNAMIC, what, why)


def _of_partial(context: Context, maker: Maker, call: ast.Call) -> Draft:
    construct, sites = "partial(FSDP, ...)", sites_of(context, maker)
    why = _why_not(maker, call)
    if why:
        return Draft(DYNAMIC, call, Action.MANUAL, why, construct, sites, silent=True)
    name, needs = context.name(RUNTIME, "shard_model", call.args[0])
    return Draft(
        DYNAMIC,
        call,
        Action.RUNTIME,
        "becomes a partial application of shard_model, which has FSDP1's signature; its calls are followed",
        construct,
        sites,
        edits=(context.rename(call.args[0], name), *renamed(context, call)),
        needs=needs,
        gone=(call.args[0],),
    )


def _why_not(maker: Maker, call: ast.Call) -> str:
    """Why a partial application cannot be rewritten; empty if it can."""
    by_hand = "replace it by a function that calls shard_model"
    unknown = [*unknown_keywords(call), *(n for _, c in maker.further for n in unknown_keywords(c))]
    if unknown:
        return (
            f"left as it is: {', '.join(f'`{name}`' for name in unknown)} is no argument of FSDP1"
        )
    if len(call.args) > 1:
        return f"gives arguments by position: give them by name, or {by_hand}"
    if maker.lost is not None:
        module, node = maker.lost
        place = f"{module.shown}:{getattr(node, 'lineno', 0)}"
        return f"the models that it makes cannot be followed from {place} on: {by_hand}"
    return ""


def _further(context: Context, maker: Maker, call: ast.Call) -> Iterator[Draft]:
    edits = tuple(renamed(context, call))
    if edits:
        message = "the argument has another name in shard_model"
        sites = sites_of(context, maker)
        yield Draft(DYNAMIC, call, Action.RUNTIME, message, "partial(...)", sites, edits=edits)


def of_call(context: Context, planned: Plan, rule: Rule, what: str, why_not: str = "") -> Draft:
    """What is said of a call that makes a model by something that becomes `shard_model`.

    Args:
        what: what is called.
        why_not: why it cannot become `shard_model`, if so.
    """
    constructor = planned.constructor
    call = constructor.call
    construct = f"{' '.join(context.source(call.func).split())}(...)"
    sites = frozenset({planned.site}) | constructor.wrapped_before
    reasons = [why_not] if why_not else []
    reasons += [f"`{keyword.arg}` is no argument of FSDP1" for keyword in constructor.unknown]
    if constructor.wrapped_before and not _collapses(context, planned):
        reasons.append("the model is FSDP1's already: wrap it once")
    if reasons:
        message = f"left as it is: {'; '.join(reasons)}"
        return Draft(rule, call, Action.MANUAL, message, construct, sites, silent=True)
    message = f"{what} calls shard_model: the model is sharded in place and stays the same object"
    edits = tuple(renamed(context, call))
    return Draft(rule, call, Action.RUNTIME, message, construct, sites, edits=edits)


def _collapses(context: Context, planned: Plan) -> bool:
    """Whether the runtime's `wrap` makes one unit of what is wrapped twice: where both say the same."""
    calls = [planned.constructor.call, *(s.call for s in planned.constructor.wrapped_before)]
    makers = [context.models.maker(call) for call in calls if call is not None]
    only_wrap = all(maker is not None and maker.partial is None for maker in makers)
    return only_wrap and not planned.constructor.call.keywords


def sites_of(context: Context, maker: Maker) -> frozenset[Site]:
    """The models that a maker makes."""
    return frozenset(context.plans[call].site for _, call in maker.calls)


def unknown_keywords(call: ast.Call) -> list[str]:
    """The keywords of a call that FSDP1's constructor does not have."""
    known = {*SIGNATURE, *FORMER_NAMES}
    return [k.arg for k in call.keywords if k.arg is not None and k.arg not in known]


def renamed(context: Context, call: ast.Call) -> Iterator[Edit]:
    """The edit that gives arguments of former releases their names of today."""
    everything: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    in_order = sorted(everything, key=lambda node: (node.lineno, node.col_offset))
    rename = {
        in_order.index(keyword): FORMER_NAMES[keyword.arg]
        for keyword in call.keywords
        if keyword.arg in FORMER_NAMES
    }
    if rename:
        yield Edit(context.syntax.find(call, cst.Call), partial(_rename, rename))


def _rename(rename: dict[int, str], updated: cst.CSTNode) -> Edited:
    assert isinstance(updated, cst.Call)
    edited = edit_call(updated, ArgumentEdits(rename=dict(rename)))
    return Edited(edited.call, edited.orphans)


Command = command(find, __doc__ or "")
