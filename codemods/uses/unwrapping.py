"""`model.module`: the module inside of the wrapper, which a plain model is itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from fsdp_migrate.codemods.constructor.before import (
    asks_first,
    given_names,
    is_wrapped,
    last_value,
    was_wrapper,
)
from fsdp_migrate.codemods.constructor.decision import decisions
from fsdp_migrate.codemods.constructor.form import PlainForm
from fsdp_migrate.codemods.constructor.origin import may_be_module
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.program import Definition
from fsdp_migrate.facts.reach import reach_of
from fsdp_migrate.findings import Action

RULE = Rule("FSDP009", "dot-module", "model.module of a plain model is the model itself")
RULES = (RULE,)
# Other wrappers that have a `.module`, in another run perhaps.
_OTHERS = re.compile(
    r"(?<!FullySharded)DataParallel|AveragedModel|\bDDP\b|deepspeed|accelerat|fabric|lightning|horovod|checkpoint_wrapper"
    r"|torch\.compile|\.compile\(\)",
    re.IGNORECASE,
)
_WRAPPED = "_fsdp_wrapped_module"


def find(context: Context) -> Iterator[Found]:
    """`.module` of plain models; on the bridge it works as before."""
    if context.file.attributes.keys().isdisjoint({"module", _WRAPPED}):
        return
    forms = decisions(context).plain_forms(context)
    if forms is not None:
        yield from plain(context, forms)


def plain(context: Context, forms: Sequence[PlainForm]) -> Iterator[Found]:
    """`.module` of names that certainly hold a plain model."""
    calls = [form.construction.call for form in forms]
    wrapped = [a for a in context.file.attributes.get(_WRAPPED, ()) if not _is_tried(context, a)]
    for attribute in (*wrapped, *context.file.attributes.get("module", ())):
        if isinstance(attribute.ctx, ast.Load) and (
            attribute.attr == _WRAPPED  # nothing else has it
            or is_certainly_wrapped(context, attribute, calls)
            or _was_wrapped(context, attribute)
        ):
            yield Found(
                RULE,
                attribute,
                Action.REWRITE,
                "is removed: a plain model has no wrapper",
                f".{attribute.attr}",
                edits=lambda node=attribute: [  # type: ignore[misc]
                    context.replace(node, context.source(node.value))
                ],
            )


def is_certainly_wrapped(
    context: Context, attribute: ast.Attribute, calls: Sequence[ast.Call]
) -> bool:
    """Whether the receiver is a name that a constructor above has just been assigned to, on every way to here.

    Or one that `isinstance(model, FSDP)` holds for: that test is rewritten, too.
    """
    name, file = attribute.value, context.file
    if not isinstance(name, ast.Name) or asks_first(file, attribute):
        return False
    return bool(is_wrapped(context, name)) or last_value(file, name, attribute) in calls


def _was_wrapped(context: Context, attribute: ast.Attribute) -> bool:
    """Whether a run has read `.module` of wrappers here, and no file that can share the model has anything else with one."""
    if not was_wrapper(context, attribute):
        return False
    reach = reach_of(context.program)
    paths = reach.of(context.file.path)
    return not any(_OTHERS.search(reach.text(path)) or _has_own(context, path) for path in paths)


def _has_own(context: Context, path: str) -> bool:
    """Whether a file has a class of modules with a `module` of their own."""
    program, reach = context.program, reach_of(context.program)
    file = program.load(path) if "module" in reach.text(path) else None
    return file is not None and any(
        "module" in given_names(cls) and may_be_module(program, Definition(file, cls))
        for cls in file.of(ast.ClassDef)
    )


def _is_tried(context: Context, attribute: ast.Attribute) -> bool:
    """Whether code asks by an exception whether there is a wrapper."""
    return any(isinstance(node, ast.Try) for node in context.file.ancestors(attribute))
