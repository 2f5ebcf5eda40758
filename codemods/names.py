"""FSDP1 names that the program goes on using: they are the runtime's, and say so once a line."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.findings import Action

OPTION = Rule("FSDP017", "fsdp1-option", "an FSDP1 option that stays refers to the runtime's class")
CLASS_USE = Rule(
    "FSDP018",
    "class-as-value",
    "the FSDP class in a table, an alias, a test or an annotation refers to the runtime's",
)
RULES = (OPTION, CLASS_USE)


def find(context: Context, found: Iterable[Found], removed: Collection[ast.AST]) -> Iterator[Found]:
    """The references that no other rule speaks of, one finding a line."""
    gone = {node for region in removed for node in ast.walk(region)}
    spoken = {line for each in found for line in _lines(each.node)}
    for reference, name in chain(context.references.items(), context.quoted.items()):
        line = reference.lineno
        if reference in gone or line in spoken:
            continue
        spoken.add(line)
        rule = CLASS_USE if name == CLASS else OPTION
        yield Found(rule, reference, Action.RUNTIME, f"refers to the runtime's {name}")


def _lines(node: ast.AST) -> range:
    """The lines that a finding speaks of: of a statement with a body, its first lines only."""
    first = getattr(node, "lineno", 0)
    if isinstance(node, ast.With | ast.AsyncWith):
        return range(first, node.body[0].lineno)
    return range(first, (getattr(node, "end_lineno", None) or first) + 1)
