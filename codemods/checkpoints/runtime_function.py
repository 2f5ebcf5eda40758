"""A method of FSDP1's class becomes the runtime's function of the same name and signature."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.rule import Draft, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.models import Site


def members(
    context: Context, *names: str
) -> Iterator[tuple[ast.Attribute, ast.Call | None, frozenset[Site]]]:
    """The references to methods of FSDP1's class or of a model, the calls of them, and the models concerned."""
    for attribute in context.module.attributes:
        if attribute.attr in names:
            sites = context.concerned(attribute)
            if sites is not None:
                call = context.module.parents[attribute]
                called = isinstance(call, ast.Call) and call.func is attribute
                yield attribute, call if called else None, sites  # type: ignore[misc]


def renamed(
    context: Context, rule: Rule, attribute: ast.Attribute, message: str, sites: frozenset[Site]
) -> Draft:
    """`FSDP.name` or `model.name` as the runtime's `name`; its arguments stay as they are."""
    reference = attribute.value if context.fsdp1(attribute.value) else None
    name, needs = context.name(RUNTIME, attribute.attr, reference, use=attribute)
    return Draft(
        rule,
        attribute,
        Action.RUNTIME,
        message,
        context.source(attribute),
        sites,
        edits=(context.rename(attribute, name),),
        needs=needs,
        gone=() if reference is None else (reference,),
    )
