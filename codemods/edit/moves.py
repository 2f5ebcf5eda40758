"""Whole statements in another place: behind a later one of their block, or inside a `with`."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from fsdp_migrate.codemods.edit.statements import parse_statements


def move_behind(
    body: Sequence[cst.CSTNode], moved: Sequence[cst.CSTNode], anchor: cst.CSTNode
) -> list[cst.CSTNode]:
    """A block in which some statements stand directly behind a later one, with their comments.

    Blank lines divide a block into paragraphs. A statement that opens a paragraph leaves the blank lines to the statement
    that opens it then; a paragraph that moves as a whole takes them along.
    """
    places = {id(statement): index for index, statement in enumerate(body)}
    going = {id(statement) for statement in moved}
    blanks = {id(s): _blank_lines(s) for s in body}
    for statement in reversed(moved):
        following = next(s for s in body[places[id(statement)] + 1 :] if id(s) not in going)
        one, other = id(statement), id(following)
        if (blanks[one] and not blanks[other]) or statement is body[0]:
            blanks[one], blanks[other] = blanks[other], blanks[one]
    result: list[cst.CSTNode] = []
    for statement in body:
        if id(statement) not in going:
            result.append(_with_blank_lines(statement, blanks[id(statement)]))
        if statement is anchor:
            result += [_with_blank_lines(s, blanks[id(s)]) for s in moved]
    return result


def enclose(
    statements: Sequence[cst.BaseStatement],
    managers: Sequence[str],
    like: cst.Module,
    line_length: int,
    indent: int,
) -> cst.BaseStatement:
    """A `with` statement around some statements; what stands above the first of them stands above it."""
    header = f"with {', '.join(managers)}:\n    pass"
    (made,) = parse_statements(header, like, line_length, indent)
    assert isinstance(made, cst.With)
    first, *rest = statements
    lines = getattr(first, "leading_lines", ())
    body = [first.with_changes(leading_lines=()), *rest]
    return made.with_changes(leading_lines=lines, body=made.body.with_changes(body=body))


def _blank_lines(statement: cst.CSTNode) -> tuple[cst.EmptyLine, ...]:
    lines: Sequence[cst.EmptyLine] = getattr(statement, "leading_lines", ())
    count = next((i for i, line in enumerate(lines) if line.comment), len(lines))
    return tuple(lines[:count])


def _with_blank_lines(statement: cst.CSTNode, blanks: tuple[cst.EmptyLine, ...]) -> cst.CSTNode:
    own = _blank_lines(statement)
    if own == blanks:
        return statement
    lines: Sequence[cst.EmptyLine] = statement.leading_lines  # type: ignore[attr-defined]
    return statement.with_changes(leading_lines=[*blanks, *lines[len(own) :]])
