"""Edits the arguments of one call, keeping every comment at its argument and the layout as it was.

A comment belongs to the argument on whose line it ends; on a line of its own, to the argument that
follows; behind the opening or in front of the closing parenthesis, to the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst

from fsdp_migrate.codemods.edit.alignment import realigned
from fsdp_migrate.codemods.edit.comments import comments_in, missing
from fsdp_migrate.codemods.edit.separated import (
    NOTHING,
    Gap,
    Item,
    Listing,
    compose,
    head_comments,
    items_of,
    tail_comments,
)


@dataclass(frozen=True)
class ArgumentEdits:
    """What is changed in the arguments of a call.

    The caller sees to it that no keyword appears twice. Positional arguments that would end up
    behind a keyword are put in front of the first one, since Python takes them nowhere else.

    Attributes:
        drop: positions in `call.args` of the arguments that go.
        rename: position to keyword. A positional argument becomes a keyword argument, a keyword
            argument gets another name, and None makes it positional. Starred arguments stay.
        replace: position to new value. The value may use parts of the old one; comments of the old
            value that the new one lacks become orphans.
        add: new arguments (keyword or None, value), behind the others but in front of `**kwargs`.
        order: the kept positions in their new order; those not named follow in the old one.
    """

    drop: frozenset[int] = frozenset()
    rename: Mapping[int, str | None] = field(default_factory=dict)
    replace: Mapping[int, cst.BaseExpression] = field(default_factory=dict)
    add: Sequence[tuple[str | None, cst.BaseExpression]] = ()
    order: Sequence[int] | None = None


@dataclass(frozen=True)
class EditedCall:
    """A call after its edits.

    Attributes:
        orphans: the comments of what was dropped, in source order. The caller places them.
    """

    call: cst.Call
    orphans: tuple[str, ...]


@dataclass(frozen=True)
class _Argument:
    node: cst.Arg
    item: Item


def edit_call(
    call: cst.Call, edits: ArgumentEdits, func: cst.BaseExpression | None = None
) -> EditedCall:
    """Applies `edits`, and calls `func` instead of the old function if one is given."""
    original = call
    if func is not None:
        func = _in_place_of(call.func, func)
        call = realigned(call, _width(func) - _width(call.func))
    listing = _listing(call)
    items = items_of(listing)
    kept: dict[int, _Argument] = {}
    orphans: list[str] = []
    for position, (arg, item) in enumerate(zip(call.args, items, strict=True)):
        if position in edits.drop:
            orphans += [*item.lead_comments, *_own_comments(arg), *item.trail_comments]
            continue
        edited = _edit_argument(arg, position, edits)
        orphans += missing(_own_comments(arg), _own_comments(edited))
        kept[position] = _Argument(edited, item)

    arguments = _with_added([kept[position] for position in _order(kept, edits.order)], edits.add)
    arguments = _positional_first(arguments)
    edited_call = call
    if func is not None:
        orphans += missing(comments_in(call.func), comments_in(func))
        edited_call = call.with_changes(func=func)
    if arguments:
        new = compose(listing, [argument.item for argument in arguments])
        edited_call = _with_arguments(edited_call, arguments, new)
    elif call.args:
        orphans += [*head_comments(listing), *tail_comments(listing)]
        edited_call = edited_call.with_changes(args=(), whitespace_before_args=NOTHING)
    return EditedCall(edited_call, _in_source_order(original, orphans))


def _in_source_order(call: cst.Call, orphans: Sequence[str]) -> tuple[str, ...]:
    if not orphans:
        return ()
    comments = comments_in(call)
    return tuple(missing(comments, missing(comments, orphans)))


def _width(expression: cst.BaseExpression) -> int:
    return len(cst.Module([]).code_for_node(expression))


def _listing(call: cst.Call) -> Listing:
    gaps = []
    for position, arg in enumerate(call.args):
        if isinstance(arg.comma, cst.Comma):
            # The parser leaves one of the two empty.
            after = arg.comma.whitespace_after
            if not arg.whitespace_after_arg.empty:
                after = arg.whitespace_after_arg
            gaps.append(Gap(arg.comma.whitespace_before, True, after))
        elif position < len(call.args) - 1:
            gaps.append(Gap(NOTHING, True, cst.SimpleWhitespace(" ")))
        else:
            gaps.append(Gap(arg.whitespace_after_arg, False, NOTHING))
    return Listing(call.whitespace_before_args, tuple(gaps))


def _with_arguments(call: cst.Call, arguments: Sequence[_Argument], listing: Listing) -> cst.Call:
    alone = len(arguments) == 1 and not listing.gaps[0].comma
    args = []
    for argument, gap in zip(arguments, listing.gaps, strict=True):
        node = argument.node
        args.append(
            node.with_changes(
                value=_delimited(node, alone),
                comma=cst.Comma(gap.before, gap.after) if gap.comma else cst.MaybeSentinel.DEFAULT,
                whitespace_after_arg=NOTHING if gap.comma else gap.before,
            )
        )
    return call.with_changes(args=args, whitespace_before_args=listing.opening)


def _own_comments(arg: cst.Arg) -> list[str]:
    """The comments inside an argument: around its star or `=`, and in its value."""
    bare = arg.with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=NOTHING)
    return comments_in(bare)


def _edit_argument(arg: cst.Arg, position: int, edits: ArgumentEdits) -> cst.Arg:
    if position in edits.replace:
        arg = arg.with_changes(value=edits.replace[position])
    if position in edits.rename and not arg.star:
        name = edits.rename[position]
        if name is None:
            return arg.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)
        if arg.keyword is None:
            return arg.with_changes(keyword=cst.Name(name), equal=_equal())
        return arg.with_changes(keyword=arg.keyword.with_changes(value=name))
    return arg


def _equal() -> cst.AssignEqual:
    return cst.AssignEqual(whitespace_before=NOTHING, whitespace_after=NOTHING)


def _order(kept: Mapping[int, _Argument], order: Sequence[int] | None) -> list[int]:
    first = [position for position in dict.fromkeys(order or ()) if position in kept]
    return [*first, *(position for position in kept if position not in first)]


def _with_added(
    arguments: Sequence[_Argument], added: Sequence[tuple[str | None, cst.BaseExpression]]
) -> list[_Argument]:
    new = []
    for name, value in added:
        keyword = None if name is None else cst.Name(name)
        equal = cst.MaybeSentinel.DEFAULT if name is None else _equal()
        new.append(_Argument(cst.Arg(value, keyword=keyword, equal=equal), Item()))
    stars = [argument.node.star for argument in arguments]
    end = stars.index("**") if "**" in stars else len(stars)
    return [*arguments[:end], *new, *arguments[end:]]


def _positional_first(arguments: Sequence[_Argument]) -> list[_Argument]:
    """Moves positional arguments behind a keyword or `**` in front of it; `k=1, *args` may stay."""
    front: list[_Argument] = []
    back: list[_Argument] = []
    unpacked = False
    for argument in arguments:
        node = argument.node
        unpacked = unpacked or node.star == "**"
        named = node.keyword is not None or node.star == "**"
        starred = node.star == "*" and not unpacked
        (back if named or (back and starred) else front).append(argument)
    return [*front, *back]


def _delimited(arg: cst.Arg, alone: bool) -> cst.BaseExpression:
    """The value in parentheses where it cannot stand without them."""
    value = arg.value
    if getattr(value, "lpar", ()):
        return value
    bare = arg.keyword is None and not arg.star
    if (
        isinstance(value, cst.Tuple | cst.Yield)
        or (isinstance(value, cst.NamedExpr) and not bare)
        or (isinstance(value, cst.GeneratorExp) and not (bare and alone))
    ):
        return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return value


def _in_place_of(old: cst.BaseExpression, new: cst.BaseExpression) -> cst.BaseExpression:
    """Keeps the parentheses around a function: in `return(f)(x)` they also divide the words."""
    if old.lpar and not new.lpar:
        return new.with_changes(lpar=old.lpar, rpar=old.rpar)
    return new
