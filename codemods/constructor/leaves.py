"""An argument whose value is one of several, each translated where it is written.

`{"sdp": ShardingStrategy.SHARD_GRAD_OP, "fsdp": ShardingStrategy.FULL_SHARD}[args.mode]` becomes
`{"sdp": False, "fsdp": None}[args.mode]`: what decides stays as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fsdp_migrate.codemods.constructor.plain import is_pure
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Edit, Edits
from fsdp_migrate.facts.scopes import Assigned
from fsdp_migrate.facts.values import branches

# What a leaf is in FSDP2, as source; None for what the table does not have.
Table = Callable[[ast.expr], str | None]


@dataclass(frozen=True, eq=False)
class Rewritten:
    """An argument with its leaves translated.

    Attributes:
        text: the expression to write at the constructor.
        leaves: what was translated.
        edits: changes of the assignments that give it its value.
        statements: assignments that go, since their value is written at the constructor.
        name: the name that is kept, if it is one.
        shared: whether the leaves stay where they are, since others may read them as well.
    """

    text: str
    leaves: tuple[ast.expr, ...]
    edits: tuple[Edits, ...] = ()
    statements: tuple[ast.stmt, ...] = ()
    name: str = ""
    shared: bool = False

    @property
    def removed(self) -> tuple[ast.expr, ...]:
        """The leaves that the rewrite takes out of the file."""
        return () if self.shared else self.leaves


def leaves_of(context: Context, value: ast.expr) -> Iterator[ast.expr]:
    """The expressions in this file that an argument can get its value from."""
    inner = branches(value) or [each.value for each in _assigned(context, value)]
    if not inner:
        yield value
    for each in inner:
        yield from leaves_of(context, each)


def rewritten(
    context: Context,
    value: ast.expr,
    table: Table,
    *,
    name: str = "",
    change: Callable[[ast.expr], list[Edit]] | None = None,
) -> Rewritten | None:
    """An argument with all its leaves translated; None if one is not known.

    Args:
        name: what a local name that has several values is called from now on; "" where it keeps its name.
        change: the edits of a leaf that is assigned to a name which stays; None to write a single value at the constructor.
    """
    text = _text(context, value, table)
    if text is not None:
        return Rewritten(text, tuple(leaves_of(context, value)))
    assigned = _assigned(context, value)
    texts = [_text(context, each.value, table) for each in assigned]
    if not assigned or None in texts or not _is_only_use(context, value, assigned):
        return _constant(context, value, table)
    assert isinstance(value, ast.Name)
    found = tuple(leaf for each in assigned for leaf in leaves_of(context, each.value))
    statements = tuple(context.file.statement(each.target) for each in assigned)
    single = len(assigned) == 1
    if single and change is None and is_pure(context, assigned[0].value):
        return Rewritten(texts[0] or "", found, statements=statements)
    kept = context.free(name, value) if name and not single else value.id

    def edits() -> list[Edit]:
        made = []
        for each, text in zip(assigned, texts, strict=True):
            if kept != value.id:
                made.append(context.replace(each.target, kept))
            if change is not None and not branches(each.value) and isinstance(each.value, ast.Call):
                made += change(each.value)
            else:
                made.append(context.replace(each.value, text or ""))
        return made

    return Rewritten(kept, found, (edits,), name=kept)


def _constant(context: Context, value: ast.expr, table: Table) -> Rewritten | None:
    """A name of an enum's member, here or in another file, which others may read as well."""
    made = context.value(value)
    if made is None or not isinstance(made.node, ast.Attribute) or made.node is value:
        return None
    text = table(made.node)
    return None if text is None else Rewritten(text, (made.node,), shared=True)


def _text(context: Context, value: ast.expr, table: Table) -> str | None:
    """An expression with the leaves that are written in it translated; None if what stays of it names FSDP1."""
    inner = branches(value)
    parts = inner or [getattr(value, "func", value)]
    gone = {node for part in parts for node in ast.walk(part)}
    if any(node in context.references for node in ast.walk(value) if node not in gone):
        return None
    if not inner:
        return table(value)
    start, _ = context.file.span(value)
    text = context.source(value)
    for each in sorted(inner, key=lambda node: -context.file.span(node)[0]):
        made = _text(context, each, table)
        if made is None:
            return None
        if not branches(each) and " if " in made:
            made = f"({made})"
        first, last = (place - start for place in context.file.span(each))
        text = text[:first] + made + text[last:]
    return text


def _assigned(context: Context, name: ast.expr) -> list[Assigned]:
    """The assignments that can give a name its value; none if it may have another value."""
    bindings = context.file.bindings(name)
    known = [each for each in bindings if isinstance(each, Assigned) and not each.path]
    return known if len(known) == len(bindings) else []


def _is_only_use(context: Context, value: ast.expr, assigned: list[Assigned]) -> bool:
    """Whether nothing else reads the name of an argument, here or in another file, and each assignment has its lines."""
    file = context.file
    assert isinstance(value, ast.Name)
    at_top = file.scope_of(assigned[0].target) is file.scope
    exported = at_top and context.is_for_others(value.id)
    statements = [file.statement(each.target) for each in assigned]
    alone = all(
        context.is_alone(each) and (not isinstance(each, ast.Assign) or len(each.targets) == 1)
        for each in statements
    )
    return file.reads(value) == [value] and not exported and alone
