"""`model.state_dict()` outside of any context, where the model is one of FSDP1's beyond doubt."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from fsdp_migrate.codemods.constructor.before import last_value
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.codemods.uses.state_dict_edits import Replacement, are_editable, call_edits
from fsdp_migrate.codemods.uses.state_dict_settings import has_other_names, is_set
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.findings import Action

BARE = Rule(
    "FSDP333",
    "bare-state-dict",
    "model.state_dict() of an FSDP1 model becomes get_model_state_dict",
)
_SCOPED = ("state_dict_type", "summon_full_params")


def find(context: Context) -> Iterator[Found]:
    """The calls whose model the same function made."""
    if not context.plain:
        return
    for attribute in context.file.attributes.get("state_dict", ()):
        call, model = context.file.parents[attribute], attribute.value
        if not isinstance(call, ast.Call) or call.func is not attribute or call.args:
            continue
        constructor = _constructor(context, call, model) if not call.keywords else None
        if constructor is None or _has_type(context, call) or has_other_names(context.models):
            continue
        made = Replacement(
            call,
            "get_model_state_dict",
            [context.source(model), "options=StateDictOptions(full_state_dict=True)"],
        )
        if are_editable(context, [made]):
            yield Found(
                BARE,
                call,
                Action.REWRITE,
                "becomes get_model_state_dict, which gathers as FSDP1's state_dict() did",
                edits=partial(call_edits, context, [made]),
                imports=tuple(made.imports(constructor.func)),
                removed=(attribute,),
            )


def _constructor(context: Context, call: ast.Call, model: ast.expr) -> ast.Call | None:
    """FSDP1's constructor, if it gave a name its last value and certainly runs before a call."""
    made = last_value(context.file, model, call)
    return made if isinstance(made, ast.Call) and context.fsdp1(made.func) == CLASS else None


def _has_type(context: Context, call: ast.Call) -> bool:
    """Whether a type other than the default may be in force at a call, or parameters be whole."""
    items = [i for n in context.file.ancestors(call) if isinstance(n, ast.With) for i in n.items]
    scoped = any(
        getattr(getattr(i.context_expr, "func", None), "attr", "") in _SCOPED for i in items
    )
    return scoped or is_set(context.models)
