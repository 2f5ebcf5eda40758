"""The findings about each constructor and its arguments, with the edits of what it becomes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.constructor import arguments, assumptions, precision
from fsdp_migrate.codemods.constructor.arguments import ROWS
from fsdp_migrate.codemods.constructor.construction import (
    CONSTRUCTOR,
    FORMER_NAMES,
    UNKNOWN,
    UNPACKED,
    Argument,
    Construction,
    constructions,
)
from fsdp_migrate.codemods.constructor.form import Decision, Form, decide
from fsdp_migrate.codemods.constructor.part import spent
from fsdp_migrate.codemods.context import Context, shortened
from fsdp_migrate.codemods.rule import Edit, Found
from fsdp_migrate.codemods.swap import RULE as IMPORT
from fsdp_migrate.findings import Action

RULES = (CONSTRUCTOR, UNPACKED, UNKNOWN, *arguments.RULES, *assumptions.RULES)


def find(context: Context) -> Iterator[Found]:
    """The constructors of a file, and their arguments."""
    spoken: set[ast.AST] = set()
    forms: list[Form] = []
    for construction in constructions(context):
        decision = Decision(None) if context.form == "bridge" else decide(construction)
        if context.silenced(CONSTRUCTOR, construction.call):
            if context.stays(construction.call.func, IMPORT):
                continue
            decision = Decision(None)
        yield _constructor(construction, decision)
        yield from _arguments(construction, decision.form, spoken)
        if decision.form is not None:
            forms.append(decision.form)
            yield from _translated_above(construction, decision.form)
            if context.form == "torch":
                yield from assumptions.of(construction, decision.form, decision)
    yield from _spent(context, forms)


def _constructor(construction: Construction, decision: Decision) -> Found:
    call, construct, form = construction.call, construction.kind, decision.form
    if form is not None:
        return Found(
            CONSTRUCTOR,
            call,
            Action.REWRITE,
            form.message,
            construct,
            edits=form.edits,
            imports=form.imports,
            removed=form.removed,
        )
    message = "stays on the bridge"
    if decision.reasons:
        count = f"{len(decision.reasons)} places: " if len(decision.reasons) > 1 else ""
        message += f": {count}{'; '.join(decision.reasons)}"
    return Found(CONSTRUCTOR, call, Action.RUNTIME, message, construct)


def _arguments(
    construction: Construction, form: Form | None, spoken: set[ast.AST]
) -> Iterator[Found]:
    """The arguments of a call that nothing was said of: a dictionary may be unpacked into several calls."""
    for argument in construction.arguments:
        if argument.name != "module" and argument.node not in spoken:
            spoken.add(argument.node)
            yield _argument(construction, argument, form)
    for keyword in construction.call.keywords if form is None else ():
        if keyword.arg in FORMER_NAMES:
            yield _renamed(construction, keyword)
    for keyword in construction.unknown:
        message = f"`{keyword.arg}` is not an argument of FSDP1: the call raises TypeError"
        yield Found(UNKNOWN, keyword, Action.MANUAL, message, f"{keyword.arg}=")
    for keyword in construction.unseen:
        message = "the runtime binds the unpacked arguments when the program runs"
        construct = f"**{shortened(construction.context.source(keyword.value))}"
        yield Found(UNPACKED, keyword.value, Action.RUNTIME, message, construct)


def _renamed(construction: Construction, keyword: ast.keyword) -> Found:
    """A former name of an argument, which neither the runtime nor FSDP1 of this torch has."""
    name, context = FORMER_NAMES[str(keyword.arg)], construction.context
    start, _ = context.file.span(keyword)
    edit = Edit(start, start + len(str(keyword.arg)), name)
    message = f"becomes {name}=, as FSDP1 has called it since torch 2.1: by its former name it raises TypeError"
    return Found(CONSTRUCTOR, keyword, Action.REWRITE, message, f"{keyword.arg}=", lambda: [edit])


def _argument(construction: Construction, argument: Argument, form: Form | None) -> Found:
    rule, text = ROWS[argument.name].say(construction, argument)
    construct = f"{argument.name}={shortened(construction.context.source(argument.value))}"
    former = getattr(argument.node, "arg", None)
    if former in FORMER_NAMES:
        text += f"; {former} is its former name, which raises TypeError"
    part = form.parts.get(argument.name) if form is not None else None
    if part is not None:
        return Found(rule, argument.node, Action.REWRITE, part.message or text, construct)
    action = Action.RUNTIME
    if rule is precision.LOW_PRECISION_GRADS:
        action = Action.MANUAL
    return Found(rule, argument.node, action, text, construct)


def _translated_above(construction: Construction, form: Form) -> Iterator[Found]:
    """The edits of an argument's value where it is assigned, above the call."""
    context = construction.context
    for argument in construction.arguments:
        part = form.parts.get(argument.name)
        for made in part.removed if part is not None else ():
            statement = context.file.statement(made)
            if part is not None and statement is not context.file.statement(construction.call):
                rule, _ = ROWS[argument.name].say(construction, argument)
                construct = shortened(context.source(statement))
                yield Found(rule, statement, Action.REWRITE, part.message, construct)


def _spent(context: Context, forms: list[Form]) -> Iterator[Found]:
    """The assignments that only the arguments of constructors have read."""
    gone = [node for form in forms for node in form.removed]
    written = {name for form in forms for name in form.names}
    parts = [part for form in forms for part in form.parts.values() if part.edits]
    edited = {context.file.statement(node) for part in parts for node in part.removed}
    for statement in spent(context, gone, written):
        if statement not in edited:
            yield Found(
                CONSTRUCTOR,
                statement,
                Action.REWRITE,
                "is removed: only FSDP1's constructor has read it",
                shortened(context.source(statement)),
                edits=lambda at=statement: [context.remove(at)],  # type: ignore[misc]
                removed=(statement,),
            )
