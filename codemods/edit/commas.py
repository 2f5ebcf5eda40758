"""Arguments, entries and context managers without some of them, on LibCST's nodes: commas, comments and layout stay right."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import libcst as cst

Space = cst.BaseParenthesizableWhitespace
_NO_SPACE = cst.SimpleWhitespace("")


def comments_in(node: cst.CSTNode) -> list[str]:
    """The comments in a node and in the white space that belongs to it, in the order of the source."""
    if isinstance(node, cst.Comment):
        found = [node.value]
    else:
        found = []
    for child in node.children:
        found += comments_in(child)
    return found


def without(node: Any, places: Collection[int]) -> tuple[Any, list[str]]:
    """A call, a dictionary or a `with` statement without its items at some places, and the comments that this removes.

    The comments of an item are removed with it: those on the lines above it, inside of it, and at the end of its line. A
    comment at the end of a line that other items share stays.
    """
    row = _Row(node)
    kept = comments_in(node)
    for place in sorted(places, reverse=True):
        row.drop(place)
    changed = row.node()
    return changed, list((Counter(kept) - Counter(comments_in(changed))).elements())


class _Row:
    """The items of a node, and the white space in front of each and behind the last one."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._items: list[Any] = list(_items(node))
        commas = [item.comma for item in self._items]
        self._commas: list[cst.Comma | None] = []
        for comma in commas:
            if isinstance(comma, cst.Comma):
                self._commas.append(comma)
            else:
                self._commas.append(None)
        self._ends_with_comma = bool(commas) and self._commas[-1] is not None
        self._spaces = [_first(node), *map(_behind, commas)]
        if self._items and not _has_text(self._spaces[-1]):
            self._spaces[-1] = _last(node)

    def drop(self, place: int) -> None:
        is_last = place == len(self._items) - 1
        before, behind = self._spaces[place : place + 2]
        joined = _joined(before, behind, is_first=place == 0, is_last=is_last)
        self._spaces[place : place + 2] = [joined]
        del self._items[place], self._commas[place]

    def node(self) -> Any:
        items = []
        for place, (item, space) in enumerate(zip(self._items, self._spaces[1:], strict=True)):
            is_last = place == len(self._items) - 1
            comma: Any = cst.MaybeSentinel.DEFAULT
            if not is_last or self._ends_with_comma:
                inside: Space = _NO_SPACE
                if not is_last or isinstance(item, cst.Arg):
                    inside = space
                comma = self._commas[place] or cst.Comma()
                if comma.whitespace_after is not inside:
                    comma = comma.with_changes(whitespace_after=inside)
            if isinstance(item, cst.Arg):
                behind: Space = _NO_SPACE
                if is_last and not self._ends_with_comma:
                    behind = space
                item = item.with_changes(whitespace_after_arg=behind)
            items.append(item.with_changes(comma=comma))
        return _with_items(self._node, items, self._spaces[0], self._spaces[-1])


def _joined(before: Space, behind: Space, *, is_first: bool, is_last: bool) -> Space:
    """The white space where an item was, out of what was in front of it and behind it."""
    match before, behind:
        case cst.ParenthesizedWhitespace(), cst.ParenthesizedWhitespace():
            return behind.with_changes(first_line=before.first_line)
        case _, cst.ParenthesizedWhitespace() if not is_first:
            return behind
        case cst.ParenthesizedWhitespace(), _ if is_last and not comments_in(before):
            return behind
        case _ if is_last and not isinstance(before, cst.ParenthesizedWhitespace):
            return behind
    return before


def _has_text(space: Space) -> bool:
    return not (isinstance(space, cst.SimpleWhitespace) and not space.value)


def _behind(comma: Any) -> Space:
    if isinstance(comma, cst.Comma):
        return comma.whitespace_after
    return _NO_SPACE


def _items(node: cst.CSTNode) -> Sequence[Any]:
    match node:
        case cst.Call():
            return node.args
        case cst.Dict():
            return node.elements
        case cst.With():
            return node.items
    raise TypeError(f"{type(node).__name__} has no items")


def _first(node: Any) -> Space:
    """The white space in front of the first item."""
    match node:
        case cst.Call():
            return node.whitespace_before_args
        case cst.Dict():
            return node.lbrace.whitespace_after
        case cst.With(lpar=cst.LeftParen() as bracket):
            return bracket.whitespace_after
    return _NO_SPACE


def _last(node: Any) -> Space:
    """The white space behind the last item, and its comma."""
    match node:
        case cst.Call(args=[*_, last]):
            return last.whitespace_after_arg
        case cst.Dict():
            return node.rbrace.whitespace_before
        case cst.With(rpar=cst.RightParen() as bracket):
            return bracket.whitespace_before
    return _NO_SPACE


def _with_items(node: Any, items: Sequence[Any], first: Space, last: Space) -> Any:
    if isinstance(node, cst.Call):
        if not items and not comments_in(first):
            first = _NO_SPACE
        return node.with_changes(args=items, whitespace_before_args=first)
    if not items:
        last = _NO_SPACE
        if comments_in(first):
            last = first
        first = _NO_SPACE
    if isinstance(node, cst.Dict):
        braces = {
            "lbrace": node.lbrace.with_changes(whitespace_after=first),
            "rbrace": node.rbrace.with_changes(whitespace_before=last),
        }
        return node.with_changes(elements=items, **braces)
    if isinstance(node.lpar, cst.LeftParen):
        brackets = {
            "lpar": node.lpar.with_changes(whitespace_after=first),
            "rpar": node.rpar.with_changes(whitespace_before=last),
        }
        return node.with_changes(items=items, **brackets)
    return node.with_changes(items=items)
