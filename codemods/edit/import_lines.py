"""Edits a line with one import statement: what takes its place, and who gets its comments."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from fsdp_migrate.codemods.edit.comments import comments_in, is_directive, with_leading_comments
from fsdp_migrate.codemods.edit.import_statement import (
    ImportEdit,
    NewImport,
    edit_import,
    module_of,
    one_per_line,
)
from fsdp_migrate.codemods.edit.separated import SPACE

LINE_LENGTH = 88  # black's

_NOQA = re.compile(r"#\s*noqa", re.IGNORECASE)

_TWO_SPACES = cst.SimpleWhitespace("  ")


def edit_import_line(
    line: cst.SimpleStatementLine,
    edit: ImportEdit,
    line_length: int = LINE_LENGTH,
    *,
    may_lead: bool = True,
) -> list[cst.SimpleStatementLine]:
    """The lines that take the place of a line with one import statement.

    A new module's statement is put in front of the edited one if it sorts there and `may_lead`, else behind it. Empty if
    nothing remains: the comments of the line are the caller's then.
    """
    (before,) = line.body
    assert isinstance(before, cst.Import | cst.ImportFrom)
    result = edit_import(before, edit)
    if result.kept is before and not result.new:
        return [line]
    new = sorted(result.new, key=lambda made: module_of(made.statement))
    lines = [_new_line(line, made, line_length) for made in new]
    if result.kept is None:
        if lines:
            lines[0] = _with_comments(_in_place_of(line, lines[0]), result.comments)
        return lines
    kept = line.with_changes(body=[_collapsed(result.kept, line, line_length)])
    kept = _with_comments(_fitted(kept, line_length, _width(before)), result.comments)
    return _sorted_in(kept, lines, before) if may_lead else [kept, *lines]


def _sorted_in(
    kept: cst.SimpleStatementLine,
    lines: list[cst.SimpleStatementLine],
    statement: cst.BaseSmallStatement,
) -> list[cst.SimpleStatementLine]:
    """The new lines in front of the kept one where they sort there, unless a comment of its own is above it.

    The statement is the one before the edit: a module that moved to the runtime is where the old one sorted.
    """
    first = 0
    if isinstance(statement, cst.ImportFrom) and not any(
        line.comment for line in kept.leading_lines
    ):
        own = module_of(statement)
        if not own.startswith("."):
            first = sum(_module(line) < own for line in lines if not _module(line).startswith("."))
    if first:
        blank, kept = kept.leading_lines, kept.with_changes(leading_lines=())
        lines[0] = lines[0].with_changes(leading_lines=[*blank, *lines[0].leading_lines])
    return [*lines[:first], kept, *lines[first:]]


def _module(line: cst.SimpleStatementLine) -> str:
    (statement,) = line.body
    return module_of(statement) if isinstance(statement, cst.ImportFrom) else ""


def _collapsed(
    statement: cst.BaseSmallStatement, line: cst.SimpleStatementLine, line_length: int
) -> cst.BaseSmallStatement:
    """On one line, if names went away, what is left fits there, and no comment holds it open."""
    (before,) = line.body
    if not isinstance(statement, cst.ImportFrom) or not isinstance(before, cst.ImportFrom):
        return statement
    names, old = statement.names, before.names
    if isinstance(names, cst.ImportStar) or isinstance(old, cst.ImportStar):
        return statement
    if len(names) >= len(old) or statement.lpar is None or comments_in(statement):
        return statement
    comma = cst.Comma(whitespace_after=SPACE)
    flat = statement.with_changes(
        names=[
            *(alias.with_changes(comma=comma) for alias in names[:-1]),
            names[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT),
        ],
        lpar=None,
        rpar=None,
        whitespace_after_import=SPACE,
    )
    code = cst.Module([]).code_for_node(flat)  # `a as b` may have lines of its own
    return flat if "\n" not in code and len(code) <= line_length else statement


def _new_line(
    line: cst.SimpleStatementLine, new: NewImport, line_length: int
) -> cst.SimpleStatementLine:
    added = cst.SimpleStatementLine([new.statement], trailing_whitespace=_line_end(line))
    names = new.statement.names
    assert not isinstance(names, cst.ImportStar)
    if len(new.comments) == len(names) == 1:
        return _fitted(_with_trailing_comment(added, new.comments[0]), line_length)
    added = _with_comments(added, new.comments)
    comment = line.trailing_whitespace.comment
    if comment and _NOQA.match(comment.value) and not added.trailing_whitespace.comment:
        # What the linter overlooks there (an unused name, an import below other code) is here too.
        added = _with_trailing_comment(added, comment.value)
    return _fitted(added, line_length)


def _in_place_of(
    line: cst.SimpleStatementLine, first: cst.SimpleStatementLine
) -> cst.SimpleStatementLine:
    """Gives the first new line all that stood around the old one."""
    own = comments_in(first.trailing_whitespace)
    old = comments_in(line.trailing_whitespace)
    if old and own != old:
        first = first.with_changes(trailing_whitespace=line.trailing_whitespace)
        first = with_leading_comments(first, own)
    return first.with_changes(leading_lines=[*line.leading_lines, *first.leading_lines])


def _with_comments(
    line: cst.SimpleStatementLine, comments: Sequence[str]
) -> cst.SimpleStatementLine:
    """Comments of dropped names: in front of the line, but what a tool reads at its end."""
    directives = [comment for comment in comments if is_directive(comment)]
    if directives and not line.trailing_whitespace.comment:
        line = _with_trailing_comment(line, directives[0])
        comments = [*comments]
        comments.remove(directives[0])
    return with_leading_comments(line, comments)


def _with_trailing_comment(line: cst.SimpleStatementLine, comment: str) -> cst.SimpleStatementLine:
    end = line.trailing_whitespace.with_changes(
        whitespace=_TWO_SPACES, comment=cst.Comment(comment)
    )
    return line.with_changes(trailing_whitespace=end)


def _line_end(line: cst.SimpleStatementLine) -> cst.TrailingWhitespace:
    return cst.TrailingWhitespace(newline=line.trailing_whitespace.newline)


def _width(statement: cst.BaseSmallStatement) -> int:
    return len(cst.Module([]).code_for_node(statement))


def _fitted(
    line: cst.SimpleStatementLine, line_length: int, before: int = 0
) -> cst.SimpleStatementLine:
    """One name per line if the statement was on one line and no longer fits on it.

    A line that is no longer than `before` may stay.
    """
    (statement,) = line.body
    if not isinstance(statement, cst.ImportFrom) or isinstance(statement.names, cst.ImportStar):
        return line
    code = cst.Module([]).code_for_node(statement)
    if "\n" in code or len(code) <= max(line_length, before):
        return line
    end = line.trailing_whitespace
    return line.with_changes(
        body=[one_per_line(statement, end if end.comment else None)],
        trailing_whitespace=_line_end(line),
    )
