"""Comma-separated items inside brackets: whose comment is whose, and how the list is laid out.

LibCST hangs all whitespace between two items on the comma of the first, so that taking an item out
of the list takes away the comment lines of the item behind it and leaves its own in front of a
stranger. Here the whitespace is cut up by owner first, and put together again for the items that
the edited list has. Where two neighbours stay neighbours the whitespace between them is kept as it
was, to the byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import libcst as cst

Whitespace = cst.BaseParenthesizableWhitespace

NOTHING = cst.SimpleWhitespace("")
SPACE = cst.SimpleWhitespace(" ")
INDENT = "    "


@dataclass(frozen=True)
class Gap:
    """What follows an item: whitespace, a comma (or none), whitespace."""

    before: Whitespace
    comma: bool
    after: Whitespace

    @property
    def shape(self) -> Whitespace:
        """The whitespace that says whether a new line starts here, and how far it is indented."""
        return self.before if breaks(self.before) and not breaks(self.after) else self.after

    @property
    def lines(self) -> tuple[cst.EmptyLine, ...]:
        """The blank lines and comment lines."""
        return (*_lines(self.before), *_lines(self.after))

    @property
    def trail(self) -> tuple[cst.TrailingWhitespace, ...]:
        """The comment at the end of the item's line; two where the comma has a line of its own."""
        return tuple(
            whitespace.first_line
            for whitespace in (self.before, self.after)
            if isinstance(whitespace, cst.ParenthesizedWhitespace) and whitespace.first_line.comment
        )


@dataclass(frozen=True)
class Listing:
    """The whitespace of a list: behind the opening bracket, and behind each item.

    The last gap is in front of the closing bracket; its comma is the trailing comma.
    """

    opening: Whitespace
    gaps: tuple[Gap, ...]


@dataclass(frozen=True)
class Item:
    """One item of the edited list.

    Attributes:
        position: where it stood in the list before; None for a new one.
        lead: the blank and comment lines in front of it.
        trail: the comments at the end of its line.
    """

    position: int | None = None
    lead: tuple[cst.EmptyLine, ...] = ()
    trail: tuple[cst.TrailingWhitespace, ...] = ()

    @property
    def lead_comments(self) -> list[str]:
        return [line.comment.value for line in self.lead if line.comment]

    @property
    def trail_comments(self) -> list[str]:
        return [line.comment.value for line in self.trail if line.comment]


def breaks(whitespace: Whitespace) -> bool:
    return isinstance(whitespace, cst.ParenthesizedWhitespace)


def _lines(whitespace: Whitespace) -> Sequence[cst.EmptyLine]:
    return whitespace.empty_lines if isinstance(whitespace, cst.ParenthesizedWhitespace) else ()


def _comments(lines: Sequence[cst.EmptyLine]) -> list[str]:
    return [line.comment.value for line in lines if line.comment]


def head_comments(listing: Listing) -> list[str]:
    """The comment on the opening bracket's line."""
    opening = listing.opening
    if not isinstance(opening, cst.ParenthesizedWhitespace) or not opening.first_line.comment:
        return []
    return [opening.first_line.comment.value]


def tail_comments(listing: Listing) -> list[str]:
    """The comment lines in front of the closing bracket."""
    return _comments(listing.gaps[-1].lines)


def items_of(listing: Listing) -> list[Item]:
    """The items of a list, each with the comments that belong to it."""
    items = []
    for position, gap in enumerate(listing.gaps):
        lead = listing.gaps[position - 1].lines if position else tuple(_lines(listing.opening))
        items.append(Item(position, lead, gap.trail))
    return items


def compose(listing: Listing, items: Sequence[Item]) -> Listing:
    """The whitespace for `items` (at least one), laid out as `listing` was.

    The comment behind the opening bracket and the comment lines in front of the closing one stay
    where they are.
    """
    opening = _opening(listing, items[0])
    gaps = [_between(listing, previous, item) for previous, item in pairwise(items)]
    return Listing(opening, (*gaps, _closing(listing, items[-1])))


def _opening(listing: Listing, first: Item) -> Whitespace:
    opening = listing.opening
    if first.position == 0:
        return opening
    lead = first.lead
    while lead and not lead[0].comment:
        lead = lead[1:]
    if isinstance(opening, cst.ParenthesizedWhitespace):
        return _broken(opening, opening.first_line, lead)
    if not lead:
        return opening
    own = NOTHING if first.position is None else listing.gaps[first.position - 1].shape
    shape = _break(listing, own)
    return _broken(shape, _line_end(shape), lead)


def _between(listing: Listing, previous: Item, item: Item) -> Gap:
    if previous.position is not None and item.position == previous.position + 1:
        return listing.gaps[previous.position]
    shape = _shape_between(listing, previous, item)
    lines = (*_as_lines(previous.trail[1:]), *item.lead)
    if not isinstance(shape, cst.ParenthesizedWhitespace):
        if not previous.trail and not _comments(lines):
            return Gap(NOTHING, True, shape)
        shape = _break(listing, shape)
    first_line = previous.trail[0] if previous.trail else _line_end(shape)
    return Gap(NOTHING, True, _broken(shape, first_line, lines))


def _closing(listing: Listing, last: Item) -> Gap:
    end = listing.gaps[-1]
    if last.position == len(listing.gaps) - 1:
        return end
    whitespace = end.after if end.comma else end.before
    lines = (*_as_lines(last.trail[1:]), *end.lines)
    if isinstance(whitespace, cst.ParenthesizedWhitespace):
        first_line = last.trail[0] if last.trail else _line_end(whitespace)
        whitespace = _broken(whitespace, first_line, lines)
    elif last.trail or _comments(lines):
        # The bracket stood behind the last item and now has to go below a comment.
        shape = _break(listing, NOTHING)
        first_line = last.trail[0] if last.trail else _line_end(shape)
        whitespace = _broken(shape, first_line, lines)
        if breaks(listing.opening):
            dedented = cst.SimpleWhitespace(_dedented(shape.last_line.value))
            whitespace = whitespace.with_changes(last_line=dedented)
    return Gap(NOTHING, True, whitespace) if end.comma else Gap(whitespace, False, NOTHING)


def _shape_between(listing: Listing, previous: Item, item: Item) -> Whitespace:
    """Whether `item` starts a line, as far as the old list can tell."""
    if item.position:
        first = item.position - 1
        if previous.position is not None and previous.position < item.position:
            first = previous.position
        # Between these two stood items that are gone: if one of them started a line, this one does.
        shapes = [gap.shape for gap in listing.gaps[first : item.position]]
        return next((shape for shape in shapes if breaks(shape)), shapes[-1])
    if len(listing.gaps) > 1:
        return listing.gaps[-2].shape
    return listing.opening if breaks(listing.opening) else SPACE


def _break(listing: Listing, preferred: Whitespace) -> cst.ParenthesizedWhitespace:
    """A line break with the indentation of the items, where a comment makes one necessary."""
    for shape in (preferred, *(gap.shape for gap in listing.gaps[:-1]), listing.opening):
        if isinstance(shape, cst.ParenthesizedWhitespace):
            return shape
    closing = listing.gaps[-1].shape
    if isinstance(closing, cst.ParenthesizedWhitespace):
        inside = cst.SimpleWhitespace(closing.last_line.value + INDENT)
        return closing.with_changes(last_line=inside)
    return cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace(INDENT))


def _broken(
    shape: cst.ParenthesizedWhitespace,
    first_line: cst.TrailingWhitespace,
    lines: Sequence[cst.EmptyLine],
) -> cst.ParenthesizedWhitespace:
    return shape.with_changes(first_line=first_line, empty_lines=lines)


def _line_end(shape: cst.ParenthesizedWhitespace) -> cst.TrailingWhitespace:
    return cst.TrailingWhitespace(newline=shape.first_line.newline)


def _as_lines(ends: Sequence[cst.TrailingWhitespace]) -> list[cst.EmptyLine]:
    return [cst.EmptyLine(indent=True, comment=end.comment, newline=end.newline) for end in ends]


def _dedented(indent: str) -> str:
    return indent.removesuffix("\t") if indent.endswith("\t") else indent.removesuffix(INDENT)
