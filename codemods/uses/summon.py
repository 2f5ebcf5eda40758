"""`FSDP.summon_full_params(model)` and `FSDP.fsdp_modules(model)`: static functions of FSDP1's class."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.codemods.constructor.decision import decisions
from fsdp_migrate.codemods.constructor.form import PlainForm
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.codemods.uses.unwrapping import is_certainly_wrapped
from fsdp_migrate.facts.names import CLASS, RUNTIME, TORCH
from fsdp_migrate.findings import Action

SUMMON = Rule("FSDP321", "summon-full-params", "the runtime has summon_full_params")
APPLY = Rule(
    "FSDP322", "apply", "model.apply(f) of a plain model goes into summon_full_params(model)"
)
UNITS = Rule(
    "FSDP362",
    "fsdp-modules",
    "FSDP.fsdp_modules(model) of a plain model becomes a list of its FSDPModules",
)
RULES = (SUMMON, APPLY, UNITS)

_RULES = {"summon_full_params": SUMMON, "fsdp_modules": UNITS}


def find(context: Context) -> Iterator[Found]:
    """The two functions of the class."""
    uses = list(_uses(context))
    is_asked = uses or "apply" in context.file.attributes
    forms = decisions(context).plain_forms(context) if is_asked else None
    if forms is not None:
        yield from plain(context, forms)
        return
    for attribute in uses:
        message = f"{attribute.attr} works on the bridge as it did"
        yield Found(_RULES[attribute.attr], attribute, Action.RUNTIME, message)


def plain(context: Context, forms: Sequence[PlainForm]) -> Iterator[Found]:
    """The two functions for a plain model."""
    for attribute in _uses(context):
        call = context.file.parents[attribute]
        if not isinstance(call, ast.Call) or call.func is not attribute:
            continue
        if attribute.attr == "summon_full_params":
            yield from _summon(context, attribute)
        elif len(call.args) == 1 and not call.keywords:
            yield _units(context, attribute, call)
    yield from _applied(context, forms)


def _uses(context: Context) -> Iterator[ast.Attribute]:
    for name in _RULES:
        for attribute in context.file.attributes.get(name, ()):
            if context.fsdp1(attribute.value) == CLASS:
                yield attribute


def _summon(context: Context, attribute: ast.Attribute) -> Iterator[Found]:
    if context.means("summon_full_params", attribute, f"{RUNTIME}.summon_full_params"):
        yield Found(
            SUMMON,
            attribute,
            Action.RUNTIME,
            "becomes summon_full_params of the runtime, which shows whole parameters and writes changes back",
            edits=lambda: [context.replace(attribute, "summon_full_params")],
            imports=(Import(RUNTIME, "summon_full_params"),),
            removed=(attribute,),
        )


def _applied(context: Context, forms: Sequence[PlainForm]) -> Iterator[Found]:
    """The statements `model.apply(f)` of names that certainly hold a plain model."""
    calls = [form.construction.call for form in forms]
    for attribute in context.file.attributes.get("apply", ()):
        statement = context.file.statement(attribute)
        call = getattr(statement, "value", None)
        if not (isinstance(call, ast.Call) and call.func is attribute):
            continue
        name_is_free = context.means("summon_full_params", call, f"{RUNTIME}.summon_full_params")
        if (
            name_is_free
            and isinstance(statement, ast.Expr)
            and context.is_alone(statement)
            and is_certainly_wrapped(context, attribute, calls)
        ):
            model, code = context.source(attribute.value), context.source(statement)
            block = f"with summon_full_params({model}):\n    {code}"
            yield Found(
                APPLY,
                attribute,
                Action.RUNTIME,
                "goes into `with summon_full_params(...)`, since FSDP1's apply gathers the parameters",
                edits=lambda at=statement, to=block: [context.replace_statement(at, to)],  # type: ignore[misc]
                imports=(Import(RUNTIME, "summon_full_params"),),
            )


def _units(context: Context, attribute: ast.Attribute, call: ast.Call) -> Found:
    def edits() -> list[Edit]:
        unit, model = context.free("module", call), context.source(call.args[0])
        return [
            context.replace(
                call, f"[{unit} for {unit} in {model}.modules() if isinstance({unit}, FSDPModule)]"
            )
        ]

    return Found(
        UNITS,
        attribute,
        Action.REWRITE,
        "becomes a list of the FSDPModules, the units of a plain model",
        edits=edits,
        imports=(Import(TORCH, "FSDPModule", attribute.value),),
        removed=(attribute,),
    )
