"""`with FSDP.state_dict_type(model, ...)` as functions of torch's, which take the type as an option.

The block moves one step out; in it every use of a state dict of the model becomes a function: `model.state_dict()`,
`model.load_state_dict(state)`, and FSDP1's functions for optimizers.
"""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context, keyword, shortened
from fsdp_migrate.codemods.edit.text import step
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.codemods.uses import optimizer_states
from fsdp_migrate.codemods.uses.options import (
    MODULE,
    Setting,
    Untranslatable,
    is_for_rank_0,
    is_side_by_side,
    settings,
)
from fsdp_migrate.codemods.uses.use import Use
from fsdp_migrate.facts.models import INNER
from fsdp_migrate.facts.names import CLASS, OPTIMIZER_STATES
from fsdp_migrate.facts.scopes import Assigned
from fsdp_migrate.findings import Action

_OF_MODELS = ("state_dict", "load_state_dict")
_NOT_HERE = (
    "Sets a type for state dicts that other code creates, and FSDP2 has no such types. In that code, replace "
    "`model.state_dict()` by `get_model_state_dict(model, options=StateDictOptions(...))`."
)


def translated(context: Context, call: ast.Call, rule: Rule) -> tuple[Found, ...]:
    """The findings for a context that is translated, the first one with all edits.

    In the default form only where torch's functions give just what FSDP1 did: whole tensors on the CPU of rank 0.

    Raises:
        Untranslatable: if it cannot be; the message says what to write.
    """
    statement = context.file.statement(call)
    if not isinstance(statement, ast.With) or not _is_manager(statement, call):
        raise Untranslatable(_NOT_HERE)
    model = keyword(call, "module", 0)
    if model is None:
        raise Untranslatable(_NOT_HERE)
    uses: list[Use] = []
    spent: tuple[ast.AST, ...] = (call,)
    imports: tuple[Import, ...] = ()
    if not _is_around_others(context, statement, model):
        own, optimizers = settings(context, call)
        uses = list(_uses(context, statement, model, own, optimizers))
        if not uses:
            raise Untranslatable(_NOT_HERE)
        if context.form == "auto" and not all(use.is_on_rank_0 for use in uses):
            raise Untranslatable("The model's own methods return what FSDP1's did.")
        spent, imports = own.spent, own.imports
    names = sorted({name for use in uses for name in use.imports})
    if not all(context.means(name, call, f"{MODULE}.{name}") for name in names):
        raise Untranslatable(f"This file has its own `{names[0]}`. Use that of `{MODULE}`.")
    message = "Removed: torch's functions take the type of state dict as an option."
    if not uses:
        message = "Removed: nothing in it depends on the type of state dict."
    needs = (*(Import(MODULE, name, call.func) for name in names), *imports)
    source = shortened(context.source(call))
    removed = (*spent, *(use.node.func for use in uses))
    found = Found(
        rule,
        statement,
        Action.REWRITE,
        message,
        source,
        edits=lambda: _edits(context, statement, call, uses),
        imports=needs,
        removed=removed,
    )
    each = (
        Found(rule, use.node, Action.REWRITE, use.message, shortened(context.source(use.node)))
        for use in uses
    )
    return found, *each


def _is_manager(statement: ast.With, call: ast.Call) -> bool:
    return any(i.context_expr is call and i.optional_vars is None for i in statement.items)


def _edits(context: Context, statement: ast.With, call: ast.Call, uses: list[Use]) -> list[Edit]:
    changed = context.statement(statement)
    out = len(statement.items) == 1
    if out:
        changed.step_out()
    else:
        changed.drop(call)
    for use in uses:
        use.write(context, changed, moved=len(step(context.file)) if out else 0)
    return changed.edits()


def _uses(
    context: Context, statement: ast.With, model: ast.expr, own: Setting, optimizers: Setting
) -> Iterator[Use]:
    inside = [node for part in statement.body for node in ast.walk(part)]
    for node in inside:
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        if node.attr in OPTIMIZER_STATES and context.fsdp1(node.value) == CLASS:
            use = optimizer_states.getting(context, node, optimizers)
            use = use or optimizer_states.loading(context, node, optimizers)
            if use is None:
                raise Untranslatable(optimizer_states.by_hand(node.attr))
            yield use
        elif node.attr in _OF_MODELS and is_of(context, node.value, model):
            call = context.call_of(node)
            if call is None:
                raise Untranslatable(_NOT_HERE)
            if node.attr == "state_dict":
                yield getting(context, call, own)
            else:
                yield setting(context, call, own)


def without_wrapper(expression: ast.expr) -> ast.expr:
    """The model of `model.module`."""
    while isinstance(expression, ast.Attribute) and expression.attr in INNER:
        expression = expression.value
    return expression


def is_of(context: Context, owner: ast.expr, model: ast.expr) -> bool:
    """Whether an expression is a model, or a part of it."""
    inner, named = ast.unparse(without_wrapper(owner)), ast.unparse(without_wrapper(model))
    return inner == named or inner.startswith(f"{named}.") or context.can_be_model(owner)


def _is_around_others(context: Context, statement: ast.With, model: ast.expr) -> bool:
    """Whether state dicts of optimizers and the like are all that a block asks for, which do not depend on the type."""
    inside = {node for part in statement.body for node in ast.walk(part)}
    names = (*_OF_MODELS, *OPTIMIZER_STATES)
    every = [n for name in names for n in context.file.attributes.get(name, ()) if n in inside]
    return bool(every) and not any(
        each.attr in OPTIMIZER_STATES or is_of(context, each.value, model) for each in every
    )


def getting(context: Context, call: ast.Call, how: Setting) -> Use:
    """`model.state_dict()` by torch's function."""
    if call.args or call.keywords:
        raise Untranslatable(
            "FSDP2's model returns shards. Call `get_model_state_dict`, and apply these arguments to its result."
        )
    assert isinstance(call.func, ast.Attribute)
    options = how.to_get(
        for_rank_0=is_for_rank_0(context, call), side_by_side=is_side_by_side(context)
    )
    given = ("_model", *([f"options={options}"] if options else []))
    message = "Replaced by `get_model_state_dict`."
    if "cpu_offload" in options:
        message += " Rank 0 gets whole tensors on the CPU, the other ranks an empty dictionary."
    elif "full_state_dict=True" in options:
        message += " Every rank gets whole tensors."
    parts = {"_model": without_wrapper(call.func.value)}
    return Use(call, "get_model_state_dict", given, parts, message)


def setting(context: Context, call: ast.Call, how: Setting) -> Use:
    """`model.load_state_dict(state)` by torch's function."""
    assert isinstance(call.func, ast.Attribute)
    state, strict = keyword(call, "state_dict", 0), keyword(call, "strict", 1)
    if state is None or keyword(call, "assign", 2) is not None:
        raise Untranslatable("FSDP2's model loads shards. Call `set_model_state_dict`.")
    if how.full != "False" and is_side_by_side(context):
        raise Untranslatable(
            "Loads whole tensors while other ranks load another model. Call `set_model_state_dict` with "
            "`StateDictOptions(full_state_dict=True)`, and check for missing keys: it does not report them."
        )
    options = how.to_set("True" if strict is None else ast.unparse(strict))
    is_shared = how.full != "False" and not _is_new(context, state)
    state_code = "dict(_state)" if is_shared else "_state"
    given = ("_model", state_code, *([f"options={options}"] if options else []))
    message = "Replaced by `set_model_state_dict`."
    if how.full != "False":
        message += " It sends rank 0's tensors to the other ranks."
    parts = {"_model": without_wrapper(call.func.value), "_state": state}
    return Use(call, "set_model_state_dict", given, parts, message)


def _is_new(context: Context, state: ast.expr) -> bool:
    """Whether a dictionary is used for nothing else: torch's function fills it with shards."""
    if isinstance(state, ast.Call):
        return True
    bindings = context.file.bindings(state)
    if not bindings or not all(isinstance(each, Assigned) for each in bindings):
        return False
    made = (each.value for each in bindings if isinstance(each, Assigned) and not each.path)
    is_made_here = all(isinstance(value, ast.Call | ast.Dict | ast.DictComp) for value in made)
    end = state.end_lineno or state.lineno
    reads = context.file.reads(state) if isinstance(state, ast.Name) else []
    return is_made_here and not any(read.lineno > end for read in reads)
