"""What a rule is, and what it finds."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fsdp_migrate.facts.names import RUNTIME, TORCH
from fsdp_migrate.findings import Action


@dataclass(frozen=True)
class Example:
    """A program before and after, or with its finding: a test, documentation and explanation at once.

    Further programs for a rule, and those in which it must find nothing, are in `tests/codemods/more_examples`.

    Attributes:
        title: what the example shows, in a few words.
        before: a whole module.
        after: the module afterwards; None if it stays as it is.
        message: a part of what a finding of the rule must say.
        file: what the module is called; a configuration, by its ending.
    """

    title: str
    before: str
    after: str | None = None
    message: str = ""
    file: str = "example.py"


def bridged(title: str, before: str, message: str = "") -> Example:
    """An example of what runs on the bridge: its imports alone change."""
    after = before.replace(f"from {TORCH} import", f"from {RUNTIME} import")
    return Example(title, before, after, message)


@dataclass(frozen=True)
class Rule:
    """One translation of one construct.

    Attributes:
        code: as in `FSDP002`; once released it keeps its meaning.
        name: in words with hyphens.
        summary: one line.
        explanation: what FSDP1 did, what FSDP2 does, why the translation is sound, and the source of the fact.
    """

    code: str
    name: str
    summary: str
    explanation: str
    examples: tuple[Example, ...] = ()


class Edit(NamedTuple):
    """A piece of a file's text and what takes its place; `start == end` inserts."""

    start: int
    end: int
    text: str


class Import(NamedTuple):
    """A name that an edit uses and the file must import.

    Attributes:
        module, name: `from module import name`.
        at: a use of the FSDP1 name that is replaced; the new import goes where that name was imported.
    """

    module: str
    name: str
    at: ast.AST | None = None


Edits = Callable[[], Sequence[Edit]]


class Found(NamedTuple):
    """What a rule says of one construct, and how to change it.

    Attributes:
        node: the construct.
        construct: the construct in a few words; its source if empty.
        edits: makes the edits; called only where they are needed.
        imports: names that the edits use.
        removed: code that the edits take away, so that nothing in it counts as a use any more.
    """

    rule: Rule
    node: ast.AST
    action: Action
    message: str
    construct: str = ""
    edits: Edits | None = None
    imports: tuple[Import, ...] = ()
    removed: tuple[ast.AST, ...] = ()
