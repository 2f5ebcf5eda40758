"""What a rule is, and what it says of one construct."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import libcst as cst

from fsdp_migrate.findings import Action
from fsdp_migrate.index.models import Site


@dataclass(frozen=True)
class Example:
    """A program before and after, or with what is said of it: test, documentation and explanation at once.

    Attributes:
        title: what the example shows, in a few words.
        before: a whole module.
        after: the module afterwards; None if it stays as it is.
        message: a part of what a finding of the rule must say.
        quiet: the rule has nothing to say here: the example shows what it leaves to others.
    """

    title: str
    before: str
    after: str | None = None
    message: str = ""
    quiet: bool = False


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


@dataclass(frozen=True, eq=False)
class Edited:
    """What takes a node's place, with the comments that have no place in it any more.

    Attributes:
        orphans: comments that go in front of the statement around the node.
    """

    node: cst.CSTNode
    orphans: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Statements:
    """What takes a statement's place: any number of statements.

    Attributes:
        orphans: comments that go in front of the statement that follows; only where nothing takes the place.
    """

    statements: Sequence[cst.BaseStatement] = ()
    orphans: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Edit:
    """A change of one node of the syntax tree.

    Attributes:
        node: the node as it was parsed.
        apply: from the node with all edits below it done, to what takes its place.
        whole: the replacement is made from the original node, so edits below it would be lost: they are refused.
    """

    node: cst.CSTNode
    apply: Callable[[cst.CSTNode], Edited | Statements]
    whole: bool = False


@dataclass(frozen=True, eq=False)
class Move:
    """A statement goes behind a later one of its block, with its comments and with the edits in it.

    Attributes:
        node, behind: the two statements as they were parsed.
    """

    node: cst.CSTNode
    behind: cst.CSTNode


@dataclass(frozen=True, eq=False)
class Enclose:
    """What becomes of a statement stands in a `with`; several for one statement share it.

    Attributes:
        node: the statement as it was parsed.
        manager: the context manager, as source.
    """

    node: cst.CSTNode
    manager: str


@dataclass(frozen=True)
class Need:
    """A name that an edit uses and the file must import.

    Attributes:
        at: the reference to an FSDP1 name that made it necessary: the import goes where that name was imported.
    """

    module: str
    name: str
    at: ast.expr | None = None


@dataclass(frozen=True, eq=False)
class Draft:
    """What one rule says of one construct, before it is known whether its model can be migrated as a whole.

    Attributes:
        node: where the construct stands.
        construct: the construct itself, short.
        sites: the constructors of the models concerned; empty if it concerns no model in particular.
        silent: left behind on a migrated model, the construct would go on running and do something else. It keeps its
            model from being migrated.
        edits, places, needs: the change, where statements go, and the names that both use.
        gone: code that the edits take away: nothing in it counts as a use any more.
        mark: the statement gets a comment with the rule's code when the rest of its model is migrated.
        on_fsdp1: the edits are right on a model that is still FSDP1's as well, so they can be made first, on their own.
    """

    rule: Rule
    node: ast.AST
    action: Action
    message: str
    construct: str
    sites: frozenset[Site] = frozenset()
    safe: bool = True
    silent: bool = False
    edits: tuple[Edit, ...] = ()
    places: tuple[Move | Enclose, ...] = ()
    needs: tuple[Need, ...] = ()
    gone: tuple[ast.AST, ...] = ()
    mark: bool = False
    on_fsdp1: bool = False
