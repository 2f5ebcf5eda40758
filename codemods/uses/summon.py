"""`FSDP.summon_full_params(model)` and `FSDP.fsdp_modules(model)`: static functions of FSDP1's class."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.facts.names import CLASS, RUNTIME, TORCH
from fsdp_migrate.findings import Action

SUMMON = Rule("FSDP321", "summon-full-params")
UNITS = Rule("FSDP362", "fsdp-modules")
RULES = (SUMMON, UNITS)

_RULES = {"summon_full_params": SUMMON, "fsdp_modules": UNITS}


def find(context: Context) -> Iterator[Found]:
    """The two functions of the class."""
    for attribute in (a for name in _RULES for a in context.file.attributes.get(name, ())):
        if context.fsdp1(attribute.value) != CLASS:
            continue
        call = context.call_of(attribute)
        if context.plain and call is not None:
            if attribute.attr == "summon_full_params":
                if context.means("summon_full_params", attribute, f"{RUNTIME}.summon_full_params"):
                    yield _summon(context, attribute)
                    continue
            elif len(call.args) == 1 and not call.keywords:
                yield _units(context, attribute, call)
                continue
        message = f"the runtime's {attribute.attr} does what FSDP1's did"
        yield Found(_RULES[attribute.attr], attribute, Action.RUNTIME, message)


def _summon(context: Context, attribute: ast.Attribute) -> Found:
    return Found(
        SUMMON,
        attribute,
        Action.RUNTIME,
        "becomes summon_full_params of the runtime, which shows whole parameters and writes changes back",
        edits=lambda: [context.replace(attribute, "summon_full_params")],
        imports=(Import(RUNTIME, "summon_full_params"),),
        removed=(attribute,),
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
        "becomes a list of the FSDPModules, the units of the model",
        edits=edits,
        imports=(Import(TORCH, "FSDPModule", attribute.value),),
        removed=(attribute,),
    )
