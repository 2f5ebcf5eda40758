"""A constructor whose arguments only a run knows: a loop over `units`, or a function with one, in the default form."""

import ast

from fsdp_migrate.codemods.constructor import functions, layout
from fsdp_migrate.codemods.constructor.construction import DIRECT, WRAP, Construction
from fsdp_migrate.codemods.constructor.outcome import (
    Form,
    are_free,
    has_another,
    imports_of,
    is_free,
    of_runtime,
)
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.codemods.uses.methods import is_replaced
from fsdp_migrate.codemods.written_out import written_out
from fsdp_migrate.facts.file import root_of, values_given
from fsdp_migrate.facts.names import CLASS


def by_units(construction: Construction, reason: str) -> Form:
    """A loop over `units`, or a function with one, which reads FSDP1's arguments when the program runs."""
    context = construction.context
    call = construction.call
    is_direct = construction.kind == DIRECT and not has_another(context, call)
    place = None
    if is_direct and are_free(context, call):
        place = layout.place_of(construction)
    if place is None or place.call is not None or place.test:
        return _by_function(construction)
    need = of_runtime("units", construction)
    inside = {*ast.walk(construction.call)}
    # Those have an edit of their own, which leaves no room for one of the whole statement.
    attributes = [node for node in inside if isinstance(node, ast.Attribute)]
    has_own = not inside.isdisjoint([node for node, _ in written_out(context)])
    has_own |= any(is_replaced(context, node) for node in attributes)
    if has_own or not is_free(context, call, need):
        return _by_function(construction)
    return Form(
        (
            "Replaced by a loop that calls `fully_shard` for each unit. `fsdp_migrate.runtime.units` computes its "
            f"arguments from FSDP1's at run time, because {reason}."
        ),
        lambda: layout.by_units(construction, place),
        (*imports_of(construction), need),
        (construction.call.func,),
    )


def _by_function(construction: Construction) -> Form:
    """A function of the file's own in the place of the class, which shards what it is given."""
    context = construction.context
    call = construction.call
    if construction.kind == WRAP:
        message = "`wrap` now calls the function passed to `enable_wrap`, which shards the module in place."
        return Form(message, list, (), ())
    names = [call.func, *values_given(call)]
    cls = next(each for each in names if context.references.get(each) == CLASS)
    shared = context.program.kept.setdefault("functions", {})
    name, first = shared.setdefault(str(context.file.path), (_function_name(context), call))
    top = functions.above_of(context, first)
    needs = (*imports_of(construction), of_runtime("units", construction))
    root = root_of(cls)
    if root is None:
        found = None
    else:
        found = context.file.variable(root)
    if found is None or found.scope is not context.file.scope:  # imported in a function
        needs = tuple(need._replace(at=None) for need in needs)
    # Names that the file uses for something else are imported inside of the function.
    inside = [need for need in needs if not is_free(context, context.file.tree, need)]

    def edits() -> list[Edit]:
        code = functions.function(construction, name, inside)
        if first is call:
            defined = [functions.defined_above(context, top, code)]
        else:
            defined = []
        return [*defined, context.rename(cls, name)]

    return Form(
        f"Replaced by `{name}`, a new function in this file, which shards in place with `fully_shard`. "
        "It reads FSDP1's arguments through `fsdp_migrate.runtime.units`.",
        edits,
        tuple(need for need in needs if need not in inside),
        (cls,),
    )


def _function_name(context: Context) -> str:
    """A name that is free wherever the file names the class."""
    name = "shard"
    for reference, meaning in context.references.items():
        if meaning == CLASS:
            name = context.free(name, reference)
    return name
