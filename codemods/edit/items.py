"""Edits of items between commas; every byte around them stays as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fsdp_migrate.codemods.edit.text import Refused, comments
from fsdp_migrate.facts.file import NEWLINE


@dataclass(eq=False)
class Item:
    """One item.

    Attributes:
        lead: what is in front of it: a space, or the end of a line, lines of comments, and an indentation.
        tail: the comment at the end of its line, with the space in front.
    """

    text: str
    lead: str = " "
    tail: str = ""

    @property
    def margin(self) -> str:
        """Its lead without comments and empty lines; "" where it shares its line, or a backslash continues one."""
        if self.lead.lstrip().startswith("\\"):
            ends = []
        else:
            ends = [*NEWLINE.finditer(self.lead)]
        if ends:
            return self.lead[ends[-1].start() :]
        return ""


@dataclass
class Items:
    """What stands between commas in a statement or an expression: names of an import, arguments, entries of a dictionary.

    Attributes:
        head: what is in front of them, with the bracket and the comment behind it.
        comma: the one behind the last, or none.
        bracket: the one that closes, or none.
    """

    head: str
    items: list[Item]
    comma: str = ""
    bracket: Item = field(default_factory=lambda: Item("", ""))

    @property
    def texts(self) -> list[str]:
        """The items without what is around them."""
        return [item.text for item in self.items]

    @property
    def code(self) -> str:
        """The code with these items."""
        commas = [*[","] * (len(self.items) - 1), self.comma, ""]
        each = zip([*self.items, self.bracket], commas, strict=True)
        return self.head + "".join(i.lead + i.text + comma + i.tail for i, comma in each)

    def insert(self, place: int, text: str) -> None:
        """One more item, on a line of its own if its neighbour has one."""
        beside = self.items[min(place, len(self.items) - 1)]
        new = Item(text, beside.margin or " ")
        if place == 0 and not beside.margin:
            new.lead = beside.lead
            beside.lead = [*self.items, beside][1].margin or " "
        elif not beside.margin:  # the comment at the end of its line stays there
            new.tail = self.items[place - 1].tail
            self.items[place - 1].tail = ""
        self.items.insert(place, new)

    def drop(self, item: Item, remarks: Sequence[str] | None = None) -> None:
        """Takes an item away, and its comments with it; where the remarks in it are given they stay, each on a line."""
        place = self.items.index(item)
        self.items.remove(item)
        after = [*self.items, self.bracket][place]
        margin = item.margin or after.margin
        if item.margin and not after.margin:
            if after is not self.bracket or (self.items and self.items[-1].tail):
                after.lead = item.margin
        elif place == 0 and not item.margin and "#" not in after.lead:
            after.lead = item.lead
        if remarks is not None:
            lines = [*comments(item.lead), *remarks, *comments(item.tail)]
            rest = margin
            if after.margin or not lines:
                rest = after.lead
            after.lead = "".join(margin + each for each in lines) + rest


def read(source: str) -> Items:
    """The items of an import statement, a call or a dictionary.

    Raises:
        Refused: for what LibCST cannot read.
    """
    import libcst as cst  # takes longer to import than a small file to migrate

    try:
        module = cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        raise Refused(f"LibCST cannot read it: {error.message}") from None
    nodes: Sequence[Any]
    first: cst.BaseParenthesizableWhitespace = cst.SimpleWhitespace("")
    last = first
    bracket = ""
    match cst.ensure_type(module.body[0], cst.SimpleStatementLine).body[0]:
        case cst.ImportFrom(names=[*nodes], lpar=cst.LeftParen(first), rpar=cst.RightParen(last)):
            bracket = ")"
        case (cst.Import() | cst.ImportFrom()) as line if isinstance(line.names, Sequence):
            nodes = line.names
            first = line.whitespace_after_import
        case cst.Expr(cst.Dict([*nodes], cst.LeftCurlyBrace(first), cst.RightCurlyBrace(last))):
            bracket = "}"
        case cst.Expr(cst.Call(args=[*others, arg], whitespace_before_args=first)):
            last = arg.whitespace_after_arg
            bracket = ")"
            nodes = [*others, arg.with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))]
        case _:
            raise Refused("it has no items")
    show = module.code_for_node
    items = Items("", [], "", Item(bracket))
    lead = show(first)
    for node in nodes:
        text = show(node.with_changes(comma=cst.MaybeSentinel.DEFAULT))
        item = Item(text, lead)
        items.items.append(item)
        items.comma = ""
        lead = ""
        if isinstance(node.comma, cst.Comma):
            item.text += show(node.comma.whitespace_before)
            items.comma = ","
            lead = show(node.comma.whitespace_after)
    items.bracket.lead = lead + show(last)
    for item, below in pairwise([Item(""), *items.items, items.bracket]):
        end = NEWLINE.split(below.lead)[0]
        if "#" in end:
            item.tail = end
            below.lead = below.lead.removeprefix(end)
    items.head = source.removesuffix(items.code)
    return items
