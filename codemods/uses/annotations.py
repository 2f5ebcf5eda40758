"""Annotations that name FSDP1's class: a model is an `nn.Module`, of which type checkers know `parameters` and the like."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context, has_torch
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Import
from fsdp_migrate.codemods.uses.classes import RULE
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.findings import Action

_MODULE = "Replaced by `nn.Module` in this annotation: type checkers find no `parameters()` on FSDP2's class `FSDPModule`."


@codemod()
def find(context: Context) -> Iterator[Found]:
    """The class in annotations, also in quotes."""
    if not context.in_place:
        return
    for reference, name in (*context.references.items(), *context.quoted.items()):
        if name == CLASS and context.is_annotation(reference):
            yield _annotation(context, reference)


def _annotation(context: Context, reference: ast.expr) -> Found:
    name, imports = _spelled(context, reference)
    node = reference
    code = name
    if isinstance(reference, ast.Constant):
        code = context.source(reference).replace(str(reference.value), name)
    other = _other_choice(context, reference, name)
    if other is not None:
        node, code = other
    edits = lambda: [context.rename(node, code)]  # noqa: E731
    return Found(
        RULE, reference, Action.REWRITE, _MODULE, edits=edits, imports=imports, removed=(reference,)
    )


def _other_choice(context: Context, reference: ast.expr, name: str) -> tuple[ast.expr, str] | None:
    """The choice of two, `Union[nn.Module, FSDP]`, whose other one is the same class: that takes its place."""
    around = context.file.parents[reference]
    match around, context.file.parents[around]:
        case ast.BinOp(left, ast.BitOr(), right), _:
            choice = around
            both = [left, right]
        case ast.Tuple(both), ast.Subscript(value) as choice if last_name(value) == "Union":
            pass
        case _:
            return None
    others = [context.source(each) for each in both if each is not reference]
    if others == [name]:
        return (choice, name)
    return None


def _spelled(context: Context, at: ast.expr) -> tuple[str, tuple[Import, ...]]:
    """How `nn.Module` is written at a place, and what has to be imported for it."""
    scope = context.file.scope_of(at)
    if context.dotted_at("nn", scope) == {"torch.nn"}:
        return "nn.Module", ()
    if context.dotted_at("Module", scope) == {"torch.nn.Module"}:
        return "Module", ()
    if has_torch(context, at):
        return "torch.nn.Module", ()
    if scope.lookup("nn") is None:
        return "nn.Module", (Import("torch", "nn", at),)
    return "torch.nn.Module", (Import("torch", "", at),)
