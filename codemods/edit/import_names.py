"""The names of an import statement in brackets, changed where they are: its layout and the comments of other names stay.

LibCST has what is between two names as one piece: the comment behind the first, then the lines and the indentation above
the second.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
from libcst import ParenthesizedWhitespace as Lines
from libcst import matchers

Gap = cst.BaseParenthesizableWhitespace


def in_place(
    text: str, staying: Sequence[str | None], added: Sequence[tuple[int, str]]
) -> tuple[str, list[str]]:
    """A statement after a change, and the comments of the names that went.

    Args:
        staying: what each name becomes, "" where it goes, and None where nothing changes.
        added: the names that come, each with its place among those that are there by then.
    """
    module = cst.parse_module(text)
    line = cst.ensure_type(module.body[0], cst.SimpleStatementLine)
    names = _Names(cst.ensure_type(line.body[0], cst.ImportFrom))
    for place in reversed(range(len(staying))):
        new = staying[place]
        if new:
            names.rename(place, new)
        elif new is not None:
            names.drop(place)
    for place, name in added:
        names.insert(place, name)
    return module.code_for_node(names.statement()), names.loose


class _Names:
    """The names of a statement, with what is in front of each of them and behind the last."""

    def __init__(self, statement: cst.ImportFrom) -> None:
        assert statement.lpar is not None
        assert statement.rpar is not None
        assert not isinstance(statement.names, cst.ImportStar)
        self.before, self.names, self.loose = statement, list(statement.names), list[str]()
        behind = [
            each.comma.whitespace_after
            if isinstance(each.comma, cst.Comma)
            else statement.rpar.whitespace_before
            for each in self.names
        ]
        self.gaps: list[Gap] = [statement.lpar.whitespace_after, *behind]
        self.has_last_comma = isinstance(self.names[-1].comma, cst.Comma)

    def rename(self, place: int, new: str) -> None:
        """Another name at the same place; comments around its `as` are loose."""
        self.loose = [*_comments(*_parts(self.names[place])[:1]), *self.loose]
        comma = self.names[place].comma
        self.names[place] = _alias(new).with_changes(comma=comma)

    def drop(self, place: int) -> None:
        """Without a name, and the comments above and behind it if it has lines of its own."""
        above, below = self.gaps[place : place + 2]
        gap = above if place == 0 or isinstance(above, Lines) else below
        gone = _comments(*_parts(self.names[place]))
        if isinstance(above, Lines) and isinstance(below, Lines):
            gap = above.with_changes(empty_lines=below.empty_lines, last_line=below.last_line)
            gone = [*_comments(*above.empty_lines), *gone, *_comments(below.first_line)]
        elif place == 0:
            gone += _comments(below)
        self.loose = [*gone, *self.loose]
        self.gaps[place : place + 2] = [gap]
        del self.names[place]

    def insert(self, place: int, name: str) -> None:
        """One more name, on a line of its own where its neighbour has one."""
        self.names.insert(place, _alias(name))
        here = self.gaps[place]
        beside = self.gaps[place - 1] if place == len(self.gaps) - 1 else here
        if not isinstance(beside, Lines):
            space = cst.SimpleWhitespace(" ")
            self.gaps[place : place + 1] = [here, space] if beside is here else [space, here]
            return
        # The comment behind the name in front stays there, the lines above the next name with that.
        first = here.first_line if isinstance(here, Lines) else cst.TrailingWhitespace()
        plain = {"first_line": cst.TrailingWhitespace()} if isinstance(here, Lines) else {}
        above = beside.with_changes(first_line=first, empty_lines=[])
        self.gaps[place : place + 1] = [above, here.with_changes(**plain)]

    def statement(self) -> cst.ImportFrom:
        """The statement with these names."""
        made, last = [], len(self.names) - 1
        ends = self.has_last_comma or bool(_comments(*_parts(self.names[-1])[1:]))
        for place, name in enumerate(self.names):
            comma: cst.Comma | cst.MaybeSentinel = cst.MaybeSentinel.DEFAULT
            if place < last or ends:
                old = name.comma if isinstance(name.comma, cst.Comma) else cst.Comma()
                comma = old.with_changes(whitespace_after=self.gaps[place + 1])
            made.append(name.with_changes(comma=comma))
        closing = cst.SimpleWhitespace("") if ends else self.gaps[-1]
        assert self.before.lpar is not None
        lpar = self.before.lpar.with_changes(whitespace_after=self.gaps[0])
        rpar = cst.RightParen(whitespace_before=closing)
        return self.before.with_changes(names=made, lpar=lpar, rpar=rpar)


def _alias(name: str) -> cst.ImportAlias:
    """`a`, or `a as b`."""
    own, _, other = name.partition(" as ")
    asname = cst.AsName(cst.Name(other)) if other else None
    return cst.ImportAlias(cst.Name(own), asname=asname)


def _parts(name: cst.ImportAlias) -> list[cst.CSTNode]:
    """A name, and what is in front of its comma."""
    alone = name.with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return [alone, *([name.comma.whitespace_before] if isinstance(name.comma, cst.Comma) else [])]


def _comments(*nodes: cst.CSTNode) -> list[str]:
    found = (each for node in nodes for each in matchers.findall(node, matchers.Comment()))
    return [cst.ensure_type(each, cst.Comment).value for each in found]
