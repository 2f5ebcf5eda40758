"""The findings about each constructor and its arguments, and the edit if the constructor becomes plain."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from fsdp_migrate.codemods.constructor import arguments, precision, sharding, wrapping
from fsdp_migrate.codemods.constructor.construction import (
    CONSTRUCTOR,
    ENABLE_WRAP,
    UNKNOWN,
    UNPACKED,
    Argument,
    Construction,
)
from fsdp_migrate.codemods.constructor.decision import Decision, decisions
from fsdp_migrate.codemods.constructor.form import PlainForm, why_not
from fsdp_migrate.codemods.constructor.makers import with_of
from fsdp_migrate.codemods.constructor.plain import Said
from fsdp_migrate.codemods.context import Context, shortened
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.findings import Action

RULES = (
    CONSTRUCTOR,
    UNPACKED,
    UNKNOWN,
    *sharding.RULES,
    *wrapping.RULES,
    *arguments.RULES,
    *precision.RULES,
)

_SAY: dict[str, Callable[[Construction, Argument], tuple[Rule, Said]]] = {
    "process_group": sharding.say,
    "sharding_strategy": sharding.say,
    "device_mesh": sharding.say,
    "auto_wrap_policy": wrapping.say,
    "mixed_precision": precision.say,
}


def find(context: Context) -> Iterator[Found]:
    """The constructors of a file, and their arguments."""
    made = decisions(context)
    constructions = made.constructions(context)
    decision = made.of(context) if context.plain and constructions else None
    spoken: set[ast.AST] = set()
    for construction in constructions:
        form = decision.forms.get(construction.call) if decision else None
        yield _constructor(construction, form, decision)
        for argument in construction.arguments:
            if argument.name != "module" and argument.node not in spoken:
                spoken.add(argument.node)  # a dictionary may be unpacked into several calls
                yield _argument(construction, argument, form)
                if form is not None:
                    yield from _elsewhere(construction, argument, form)
        for keyword in construction.unknown:
            message = f"`{keyword.arg}` is not an argument of FSDP1: the call raises TypeError"
            yield Found(UNKNOWN, keyword, Action.MANUAL, message, f"{keyword.arg}=")
        for keyword in construction.unseen if construction.maker is None else ():
            message = "the runtime binds the unpacked arguments when the program runs"
            construct = f"**{shortened(context.source(keyword.value))}"
            yield Found(UNPACKED, keyword.value, Action.RUNTIME, message, construct)


def _constructor(
    construction: Construction, form: PlainForm | None, decision: Decision | None
) -> Found:
    call, construct = construction.call, construction.kind
    if form is None:
        message = "stays on the bridge"
        if decision is not None:
            message += f": {why_not(construction) or decision.reason}"
        return Found(CONSTRUCTOR, call, Action.RUNTIME, message, construct)
    message = "becomes fully_shard(...): the model is sharded in place and stays the same object"
    if form.whole.units or form.whole.members:
        message = "becomes fully_shard(...) on every unit, children before parents, the model last"
    if "use_full_state_dicts({model})" in form.whole.below:
        message += "; use_full_state_dicts(...) keeps its own state dicts whole, as FSDP1's were"
    body = None
    if "reshard_after_forward" in form.whole.root:
        message += (
            "; the root frees its parameters after forward, for an optimizer that is made then"
        )
    if construction.kind == ENABLE_WRAP:
        message = "is removed: each call of wrap becomes fully_shard"
        body = with_of(construction.context, construction)  # all of its lines change
    return Found(
        CONSTRUCTOR,
        body if body is not None else call,
        Action.REWRITE,
        message,
        construct,
        edits=form.edits,
        imports=form.imports,
        removed=form.removed,
    )


def _argument(construction: Construction, argument: Argument, form: PlainForm | None) -> Found:
    rule, said = _SAY.get(argument.name, arguments.say)(construction, argument)
    construct = f"{argument.name}={shortened(construction.context.source(argument.value))}"
    if form is None:
        return Found(rule, argument.node, said.action, said.message, construct)
    message = form.parts[argument.name].message or said.message
    return Found(rule, argument.node, Action.REWRITE, message, construct)


def _elsewhere(construction: Construction, argument: Argument, form: PlainForm) -> Iterator[Found]:
    """The edits of an argument's value where it is assigned, above the call."""
    context, part = construction.context, form.parts[argument.name]
    rule, _ = _SAY.get(argument.name, arguments.say)(construction, argument)
    for made in part.removed:
        statement = context.file.statement(made)
        if statement is not context.file.statement(construction.call):
            construct = shortened(context.source(statement))
            yield Found(rule, statement, Action.REWRITE, part.message, construct)
