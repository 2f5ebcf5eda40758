"""What a rule is, and what it finds."""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fsdp_migrate.findings import Action, Severity

# Beside this folder in the repository, and in an installation.
_PAGES = Path(__file__).parent.parent / "docs" / "rules"


@dataclass(frozen=True)
class Rule:
    """One translation of one construct.

    Attributes:
        code: as in `FSDP002`; once released it keeps its meaning.
        name: in words with hyphens.
        severity: of its findings that need the user, unless a finding has its own.
    """

    code: str
    name: str
    severity: Severity = Severity.SILENT

    @property
    def page(self) -> str:
        """Its page, in Markdown: what FSDP1 did, what FSDP2 does, why the translation is sound, and examples."""
        return (_PAGES / f"{self.code}.md").read_text("utf-8")

    @property
    def summary(self) -> str:
        """The first sentence of its page."""
        return self.page.split("\n")[2]


class Edit(NamedTuple):
    """A piece of a file's text and what takes its place; `start == end` inserts.

    Attributes:
        lost: comments that are removed because they speak only of what is removed.
    """

    start: int
    end: int
    text: str
    lost: tuple[str, ...] = ()


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
        refused: what it is if the edits cannot be made.
        severity: what happens where nobody acts on it, if it needs the user; None for the rule's.
        of: the construct whose edits change this one as well; where they cannot be made, this one is for the user, too.
    """

    rule: Rule
    node: ast.AST
    action: Action
    message: str
    construct: str = ""
    edits: Edits | None = None
    imports: tuple[Import, ...] = ()
    removed: tuple[ast.AST, ...] = ()
    refused: Action = Action.RUNTIME
    severity: Severity | None = None
    of: ast.AST | None = None
