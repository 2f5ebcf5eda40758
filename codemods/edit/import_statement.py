"""Edits one import statement in place: names dropped, imported from elsewhere, added.

A `from m import a, b` keeps its layout, its order, and the comment of each name that stays. Only
what comes from another module becomes a statement of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import libcst as cst
from libcst.helpers import get_full_name_for_node

from fsdp_migrate.codemods.edit.alias_order import SortKey, isort_key, order_of, place_in
from fsdp_migrate.codemods.edit.separated import (
    NOTHING,
    SPACE,
    Gap,
    Item,
    Listing,
    compose,
    head_comments,
    items_of,
    tail_comments,
)

INDENT = cst.SimpleWhitespace("    ")


@dataclass(frozen=True)
class ImportEdit:
    """What is changed in one import statement (`from m import a as b, c` or `import m.n as k`).

    A module is given as it is written, with the dots of a relative import in front. A star stays,
    and names added to `from m import *` are imported by a statement behind it.

    Attributes:
        drop: local names bound by it: the name behind `as`, else the name; for `import a.b` the
            dotted name.
        move: local name to (new module, new name): imported from elsewhere, still bound as the same
            local name. `import a.b` has none to keep: the new name itself is bound in its stead.
        add: (module, name) needed at this place as well, unless the statement binds that name. The
            name may be written `name as local`.
    """

    drop: frozenset[str] = frozenset()
    move: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    add: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class NewImport:
    """A statement for names of another module, and the comments that came with them."""

    statement: cst.ImportFrom
    comments: tuple[str, ...]


@dataclass(frozen=True)
class EditedImport:
    """What is left of a statement, what follows it, and the comments of dropped names."""

    kept: cst.BaseSmallStatement | None
    new: tuple[NewImport, ...] = ()
    comments: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Entry:
    alias: cst.ImportAlias
    item: Item

    @property
    def name(self) -> str:
        return self.alias.evaluated_name

    @property
    def local(self) -> str:
        return self.alias.evaluated_alias or self.name

    @property
    def reexported(self) -> bool:
        return self.alias.asname is not None and self.local == self.name

    @property
    def comments(self) -> list[str]:
        return [*self.item.lead_comments, *self.item.trail_comments]


def name_and_local(name: str) -> tuple[str, str]:
    """`a as b` is imported as a and bound as b; `a` is bound as itself."""
    imported, _, local = name.partition(" as ")
    return imported, local or imported


def module_of(statement: cst.ImportFrom) -> str:
    """The module as it is written: `torch.distributed.fsdp`, `..utils`."""
    name = get_full_name_for_node(statement.module) if statement.module else None
    return "." * len(statement.relative) + (name or "")


def edit_import(statement: cst.Import | cst.ImportFrom, edit: ImportEdit) -> EditedImport:
    """The statement after its edit."""
    if isinstance(statement.names, cst.ImportStar):
        return EditedImport(statement, _new_imports([], edit.add, isort_key))
    if isinstance(statement, cst.ImportFrom):
        statement = _relocated(statement, edit)
    listing = _listing(statement)
    assert not isinstance(statement.names, cst.ImportStar)
    entries = [
        _Entry(alias, item) for alias, item in zip(statement.names, items_of(listing), strict=True)
    ]
    order = order_of([entry.name for entry in entries])
    module = module_of(statement) if isinstance(statement, cst.ImportFrom) else None

    kept: list[_Entry] = []
    gone: list[_Entry] = []
    moved: list[_Entry] = []
    incoming: list[_Entry] = []
    for entry in entries:
        if entry.local not in edit.move:
            (gone if entry.local in edit.drop else kept).append(entry)
        elif edit.move[entry.local][0] != module:
            moved.append(entry)
        elif edit.move[entry.local][1] == entry.name:
            kept.append(entry)
        else:
            incoming.append(_renamed(entry, edit.move[entry.local][1]))

    bound = {entry.local for entry in (*kept, *incoming)}
    here = [
        name
        for other, name in dict.fromkeys(edit.add)
        if other == module and name_and_local(name)[1] not in bound
    ]
    elsewhere = [(other, name) for other, name in edit.add if other != module]
    added = [_Entry(_alias(*name_and_local(name)), Item()) for name in here]
    homeless = gone
    if len(gone) == len(added) == 1 and not moved:
        # One name for another: what was said of the old one is said of the new one.
        added = [_Entry(added[0].alias, replace(gone[0].item, position=None))]
        homeless = []
    place = next((i for i, entry in enumerate(entries) if entry not in kept), len(entries))
    kept = _with_incoming(kept, [*incoming, *added], place, order)

    comments = [comment for entry in homeless for comment in entry.comments]
    new = _new_imports(
        [(entry, edit.move[entry.local]) for entry in moved], elsewhere, order or isort_key
    )
    if not kept:
        comments = [*head_comments(listing), *comments, *tail_comments(listing)]
        return EditedImport(None, new, tuple(comments))
    if [*kept] == entries:
        return EditedImport(statement, new)
    return EditedImport(_with_entries(statement, listing, kept), new, tuple(comments))


def _relocated(statement: cst.ImportFrom, edit: ImportEdit) -> cst.ImportFrom:
    """The statement with another module, if all names that stay move to the same one: its layout stays, too."""
    assert not isinstance(statement.names, cst.ImportStar)
    locals_ = {alias.evaluated_alias or alias.evaluated_name for alias in statement.names}
    staying = locals_ - edit.drop
    modules = {edit.move[local][0] if local in edit.move else "" for local in staying}
    own = module_of(statement)
    if len(modules) != 1 or modules & {"", own} or any(module == own for module, _ in edit.add):
        return statement
    elsewhere = _import_from(modules.pop(), [cst.ImportAlias(cst.Name("_"))])
    return statement.with_changes(module=elsewhere.module, relative=elsewhere.relative)


def _listing(statement: cst.Import | cst.ImportFrom) -> Listing:
    assert not isinstance(statement.names, cst.ImportStar)
    opening: cst.BaseParenthesizableWhitespace = NOTHING
    closing: cst.BaseParenthesizableWhitespace = NOTHING
    if isinstance(statement, cst.ImportFrom):
        opening = statement.lpar.whitespace_after if statement.lpar else NOTHING
        closing = statement.rpar.whitespace_before if statement.rpar else NOTHING
    gaps = []
    for position, alias in enumerate(statement.names):
        last = position == len(statement.names) - 1
        if isinstance(alias.comma, cst.Comma):
            # Behind the last comma the parser leaves one of the two empty.
            after = closing if last and not closing.empty else alias.comma.whitespace_after
            gaps.append(Gap(alias.comma.whitespace_before, True, after))
        else:
            gaps.append(Gap(closing, False, NOTHING) if last else Gap(NOTHING, True, SPACE))
    return Listing(opening, tuple(gaps))


def _with_entries(
    statement: cst.Import | cst.ImportFrom, listing: Listing, entries: Sequence[_Entry]
) -> cst.Import | cst.ImportFrom:
    listing = compose(listing, [entry.item for entry in entries])
    names = [
        entry.alias.with_changes(
            comma=cst.Comma(gap.before, gap.after) if gap.comma else cst.MaybeSentinel.DEFAULT
        )
        for entry, gap in zip(entries, listing.gaps, strict=True)
    ]
    if isinstance(statement, cst.Import) or not statement.lpar or not statement.rpar:
        return statement.with_changes(names=names)
    end = listing.gaps[-1]
    return statement.with_changes(
        names=names,
        lpar=statement.lpar.with_changes(whitespace_after=listing.opening),
        rpar=statement.rpar.with_changes(whitespace_before=NOTHING if end.comma else end.before),
    )


def _renamed(entry: _Entry, name: str) -> _Entry:
    """Another object of the same module under the same local name."""
    if entry.alias.asname and (entry.local != name or entry.reexported):
        alias = entry.alias.with_changes(name=cst.Name(name))
    else:
        alias = _alias(name, entry.local)
    return _Entry(alias, replace(entry.item, position=None))


def _alias(name: str, local: str, reexported: bool = False) -> cst.ImportAlias:
    # `a as a` says that `a` is meant for others.
    asname = cst.AsName(cst.Name(local)) if local != name or reexported else None
    return cst.ImportAlias(cst.Name(name), asname)


def _with_incoming(
    kept: Sequence[_Entry], incoming: Sequence[_Entry], place: int, order: SortKey | None
) -> list[_Entry]:
    """Puts new entries where the statement's order has them; without one, where the old were."""
    if order is None:
        incoming = sorted(incoming, key=lambda entry: isort_key(entry.name))
        return [*kept[:place], *incoming, *kept[place:]]
    result = list(kept)
    for entry in incoming:
        result.insert(place_in([other.name for other in result], entry.name, order), entry)
    return result


def _new_imports(
    moved: Sequence[tuple[_Entry, tuple[str, str]]],
    added: Sequence[tuple[str, str]],
    order: SortKey,
) -> tuple[NewImport, ...]:
    """One statement for each module."""
    aliases: dict[str, dict[str, cst.ImportAlias]] = {}
    comments: dict[str, list[str]] = {}
    for entry, (module, name) in moved:
        # The local name of `import a.b` is no name that anything could be bound to.
        local = name if "." in entry.local else entry.local
        alias = _alias(name, local, entry.reexported)
        aliases.setdefault(module, {})[local] = alias
        comments.setdefault(module, []).extend(entry.comments)
    for module, added_name in added:
        name, local = name_and_local(added_name)
        aliases.setdefault(module, {}).setdefault(local, _alias(name, local))
    new = []
    for module, names in aliases.items():
        ordered = sorted(names, key=lambda local: (order(names[local].evaluated_name), local))
        statement = _import_from(module, [names[local] for local in ordered])
        new.append(NewImport(statement, tuple(comments.get(module, ()))))
    return tuple(new)


def _import_from(module: str, aliases: Sequence[cst.ImportAlias]) -> cst.ImportFrom:
    """`from module import name as local, ...` on one line."""
    dotted = module.lstrip(".")
    expression = cst.parse_expression(dotted) if dotted else None
    assert expression is None or isinstance(expression, cst.Attribute | cst.Name)
    comma = cst.Comma(whitespace_after=SPACE)
    return cst.ImportFrom(
        module=expression,
        names=[*(alias.with_changes(comma=comma) for alias in aliases[:-1]), aliases[-1]],
        relative=[cst.Dot()] * (len(module) - len(dotted)),
    )


def one_per_line(
    statement: cst.ImportFrom, comment: cst.TrailingWhitespace | None
) -> cst.ImportFrom:
    """Each name on its line, with a trailing comma and `comment` behind the parenthesis."""
    assert not isinstance(statement.names, cst.ImportStar)
    inside = cst.ParenthesizedWhitespace(indent=True, last_line=INDENT)
    opening = inside if comment is None else inside.with_changes(first_line=comment)
    commas = [cst.Comma(whitespace_after=inside)] * (len(statement.names) - 1)
    commas.append(cst.Comma(whitespace_after=cst.ParenthesizedWhitespace(indent=True)))
    return statement.with_changes(
        names=[
            alias.with_changes(comma=comma)
            for alias, comma in zip(statement.names, commas, strict=True)
        ],
        lpar=cst.LeftParen(whitespace_after=opening),
        rpar=cst.RightParen(),
    )
