"""`isinstance(model, FSDP)` and annotations: the class of a plain model is `FSDPModule`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.codemods.constructor.decision import decisions
from fsdp_migrate.codemods.constructor.form import PlainForm
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Found, Import, Rule
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.names import CLASS, TORCH
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP007",
    "isinstance",
    "isinstance(m, FSDP) and annotations name FSDPModule where the model is plain",
)
RULES = (RULE,)


def find(context: Context) -> Iterator[Found]:
    """The class in tests and annotations, where the models are plain; elsewhere it goes on meaning the runtime's."""
    if CLASS not in context.references.values():
        return
    forms = decisions(context).plain_forms(context)
    if forms is not None:
        yield from plain(context, forms)


def plain(context: Context, forms: Sequence[PlainForm]) -> Iterator[Found]:
    """The class as `FSDPModule`."""
    idle = {node for each in decisions(context).idle(context) for node in ast.walk(each)}
    for reference, name in context.references.items():
        if (
            reference in idle
            or name != CLASS
            or not (_is_tested(context, reference) or context.is_annotation(reference))
        ):
            continue
        if not context.means("FSDPModule", reference, f"{TORCH}.FSDPModule"):
            continue
        if _is_tested(context, reference):
            if _tells_both_apart(context) or _passes_over(context.file, reference):
                continue
        yield Found(
            RULE,
            reference,
            Action.REWRITE,
            "becomes FSDPModule, the class of a plain model",
            edits=lambda node=reference: [context.rename(node, "FSDPModule")],  # type: ignore[misc]
            imports=(Import(TORCH, "FSDPModule", reference),),
            removed=(reference,),
        )


def _tells_both_apart(context: Context) -> bool:
    """Whether the program tests for FSDP2's class as well: its branches for FSDP1 and FSDP2 stay two."""
    return any(
        "FSDPModule" in file.source(call.args[1])
        for file in context.program.files
        for call in file.of(ast.Call)
        if getattr(call.func, "id", "") == "isinstance" and len(call.args) == 2
    )


def _passes_over(file: File, reference: ast.expr) -> bool:
    """Whether a loop is for what is no wrapper, such as the modules inside of them: in a plain model these are the units."""
    test = next(each for each in file.ancestors(reference) if isinstance(each, ast.Call))
    bindings = file.bindings(test.args[0])
    if not any(isinstance(getattr(b, "node", 0), ast.For | ast.comprehension) for b in bindings):
        return False
    for each in file.ancestors(test):
        if isinstance(each, ast.stmt):
            return isinstance(each, ast.If) and bool(
                each.orelse or isinstance(each.body[-1], ast.Continue)
            )
        if isinstance(each, ast.IfExp) or isinstance(getattr(each, "op", None), ast.Not):
            return True
        if hasattr(each, "generators"):
            return False
    return False


def _is_tested(context: Context, reference: ast.expr) -> bool:
    """Whether a reference is among the classes of `isinstance`."""
    node: ast.AST = reference
    parent = context.file.parents[node]
    if isinstance(parent, ast.Tuple):
        node, parent = parent, context.file.parents[parent]
    called = getattr(parent, "func", None)
    if not isinstance(parent, ast.Call) or getattr(called, "id", "") != "isinstance":
        return False
    return len(parent.args) == 2 and parent.args[1] is node
