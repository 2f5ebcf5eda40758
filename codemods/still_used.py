"""FSDP1 names that a program goes on using: no other rule speaks of them, and what they come from now is said once a line."""

import ast
from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.codemods.swap import OPTION, staying_names
from fsdp_migrate.codemods.swap import RULE as IMPORT
from fsdp_migrate.facts.file import place_of
from fsdp_migrate.facts.names import CLASS, POLICIES, WRAPPING
from fsdp_migrate.findings import Action, Severity

CLASS_USE = Rule("FSDP018", "class-as-value", Severity.RAISES)
_WRAPS = (
    "Constructor calls through this name are not sharded in place: "
    "call `FSDP` itself, or a function that calls `fully_shard`."
)
_NO_MODEL = (
    "FSDP1's class is used as a value here, but no FSDP2 model is an instance of it. In a class test, use `FSDPModule`; "
    "if the class is called, use a function that calls `fully_shard`."
)
_COMPARED = (
    "No model sharded by `fully_shard` has this class, so the comparison has another result now. "
    "Write `isinstance(model, FSDPModule)` instead."
)
_IN_A_TEXT = "Unchanged: only a text names the class. Nothing has to be done."


def still_used(
    context: Context, found: Iterable[Found], removed: Collection[ast.AST]
) -> Iterator[Found]:
    """The references that no other rule speaks of, one finding a line."""
    gone = {node for region in removed for node in ast.walk(region)}
    stays = staying_names(context)
    spoken = {line for each in found for line in _lines(each.node)}
    for reference, name in chain(context.references.items(), context.quoted.items()):
        if reference in gone or reference in stays or reference.lineno in spoken:
            continue
        if context.stays(reference, IMPORT):
            continue
        spoken.add(reference.lineno)
        rule = OPTION
        if name == CLASS:
            rule = CLASS_USE
        if context.form == "torch" or name in POLICIES | WRAPPING:
            yield _torchs_own(context, rule, reference, name)
            continue
        message = f"Still works: `{name}` is now imported from `fsdp_migrate.runtime`."
        is_named = isinstance(context.file.parents[reference], ast.Assign)
        if name == CLASS and context.in_place and is_named:
            message = f"{message} {_WRAPS}"
        yield Found(rule, reference, Action.RUNTIME, message)


def _torchs_own(context: Context, rule: Rule, reference: ast.expr, name: str) -> Found:
    """The finding for an FSDP1 name that stays torch's."""
    around = context.file.parents[reference]
    if name == CLASS and isinstance(around, ast.Compare):
        return Found(rule, reference, Action.MANUAL, _COMPARED, severity=Severity.SILENT)
    if name == CLASS and isinstance(around, ast.FormattedValue):
        return Found(rule, reference, Action.RUNTIME, _IN_A_TEXT)
    if name == CLASS:
        return Found(rule, reference, Action.MANUAL, _NO_MODEL)
    return Found(
        rule,
        reference,
        Action.RUNTIME,
        f"Unchanged: torch still has `{name}`. If a use of it needs you, that line has its own finding.",
    )


def _lines(node: ast.AST) -> range:
    """The lines that a finding speaks of: of a statement with a body, its first lines only."""
    first, _, last, _ = place_of(node)
    if isinstance(node, ast.With | ast.AsyncWith):
        return range(first, node.body[0].lineno)
    return range(first, last + 1)
