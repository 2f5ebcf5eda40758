"""`name = name.replace("_fsdp_wrapped_module.", "")`: no name of a model has that part under FSDP2. It goes in torch's form."""

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand.clean_names import PREFIX
from fsdp_migrate.codemods.by_hand.in_place import WRAPPER
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.taken_away import drop_with_comments
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Edit, Found
from fsdp_migrate.codemods.uses.guards import stays_fsdp1
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.findings import Action

_REMOVED = "Removed: no name of a model has this part under FSDP2."
_NAMING = ("named_buffers", "named_modules", "named_parameters")
_ABOUT = re.compile(r"wrap|FSDP", re.IGNORECASE)


@codemod(words=(PREFIX,), forms=("torch",))
def find(context: Context) -> Iterator[Found]:
    """Each such statement in a loop over the names of a model."""
    if context.form != "torch" or not context.models.shards():
        return
    if context.program.once(stays_fsdp1):
        return
    for call in context.file.calls.get("replace", ()):
        statement = context.file.parents[call]
        if not isinstance(statement, ast.Assign) or not _takes_prefix_off(statement):
            continue
        if context.is_alone(statement) and _is_in_loop_over_names(context.file, statement):
            edits = lambda at=statement: [_without(context, at)]  # noqa: E731
            yield Found(
                WRAPPER, statement, Action.REWRITE, _REMOVED, edits=edits, removed=(statement,)
            )


def _takes_prefix_off(statement: ast.Assign) -> bool:
    match statement:
        case ast.Assign(
            [ast.Name(target)],
            ast.Call(ast.Attribute(ast.Name(name)), [ast.Constant(str(part)), ast.Constant("")]),
        ):
            return target == name and part.strip(".") == PREFIX
    return False


def _is_in_loop_over_names(file: File, statement: ast.Assign) -> bool:
    """Whether the loop around a statement gives it the name that it changes."""
    loop = file.parents[statement]
    if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call):
        return False
    targets = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    is_first = statement is loop.body[0] and len(loop.body) > 1
    return (
        is_first
        and last_name(loop.iter.func) in _NAMING
        and last_name(statement.targets[0]) in targets
    )


def _without(context: Context, statement: ast.Assign) -> Edit:
    return drop_with_comments(context.file, statement, _ABOUT)
