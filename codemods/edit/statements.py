"""Statements put into a file: generated, unwrapped from a `with`, or in the place of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from fsdp_migrate.codemods.edit.comments import as_lines, with_leading_comments

_INDENT = "    "  # black's
_NARROWEST = 40


def parse_statements(
    source: str, like: cst.Module, line_length: int = 88, indent: int = 0
) -> list[cst.BaseStatement]:
    """Parses generated code for insertion into `like`, formatted by black for `indent` columns.

    Quotes stay as they are: generated code holds expressions of the user's. The statements take on
    the module's indentation and line endings wherever they are put. Raises what LibCST raises where
    `source` is not Python.
    """
    formatted = _formatted(source, max(line_length - indent, _NARROWEST))
    newline = like.default_newline
    config = replace(like.config_for_parsing, default_indent=_INDENT, default_newline=newline)
    if newline != "\n":
        formatted = formatted.replace("\n", newline)
    module = cst.parse_module(formatted, config=config)
    statements: list[cst.BaseStatement] = list(module.body)
    if not statements:
        return []
    statements[0] = _prefixed(statements[0], _without_blank_start(module.header))
    footer = [line.comment.value for line in module.footer if line.comment]
    statements[-1] = with_leading_comments(statements[-1], footer)
    if like.default_indent != _INDENT:
        reindent = _Reindent(like.default_indent)
        return [_statement(statement.visit(reindent)) for statement in statements]
    return statements


def _formatted(source: str, line_length: int) -> str:
    # Most runs insert nothing; black takes longer to import than a small file to migrate.
    import black
    from black.parsing import InvalidInput

    mode = black.Mode(line_length=line_length, string_normalization=False)
    source = source.replace("\r\n", "\n")
    try:
        return black.format_str(source, mode=mode)
    except InvalidInput:
        return source if source.endswith("\n") else f"{source}\n"


class _Reindent(cst.CSTTransformer):
    """Continuation lines with the module's indentation; that of blocks is the module's already."""

    def __init__(self, indent: str) -> None:
        super().__init__()
        self._indent = indent

    def leave_ParenthesizedWhitespace(
        self, original_node: cst.ParenthesizedWhitespace, updated_node: cst.ParenthesizedWhitespace
    ) -> cst.ParenthesizedWhitespace:
        lines = [
            line.with_changes(whitespace=self._converted(line.whitespace))
            for line in updated_node.empty_lines
        ]
        return updated_node.with_changes(
            last_line=self._converted(updated_node.last_line), empty_lines=lines
        )

    def _converted(self, whitespace: cst.SimpleWhitespace) -> cst.SimpleWhitespace:
        return cst.SimpleWhitespace(whitespace.value.replace(_INDENT, self._indent))


def ensure_body(block: cst.BaseSuite) -> cst.BaseSuite:
    """The block with a `pass` if it is empty, and with all its comments."""
    if block.body:
        return block
    if isinstance(block, cst.SimpleStatementSuite):
        return block.with_changes(body=[cst.Pass()])
    return block.with_changes(body=[cst.SimpleStatementLine([cst.Pass()])])


def dedent_body(block: cst.IndentedBlock) -> list[cst.BaseStatement]:
    """The statements of a block, to be put in the place of the statement that it is the body of.

    The comment on the block's first line and those below its last statement become comment lines.
    """
    statements: list[cst.BaseStatement] = [_statement(statement) for statement in block.body]
    header = [block.header.comment.value] if block.header.comment else []
    footer = [line.comment.value for line in block.footer if line.comment]
    if not statements:
        comments = as_lines([*header, *footer])
        return [cst.SimpleStatementLine([cst.Pass()], comments)] if comments else []
    statements[0] = _prefixed(statements[0], as_lines(header))
    statements[-1] = with_leading_comments(statements[-1], footer)
    return statements


def replace_statement(
    line: cst.BaseStatement, new_statements: Sequence[cst.BaseStatement]
) -> list[cst.BaseStatement]:
    """The new statements with the old one's leading lines, and its trailing comment on the last.

    Where the last one has no line end of its own to hold that comment, it goes on a line in front.
    Comments inside the old statement are the caller's.
    """
    statements = list(new_statements)
    if not statements:
        return []
    if isinstance(line, cst.SimpleStatementLine):
        last = statements[-1]
        comment = line.trailing_whitespace.comment
        if isinstance(last, cst.SimpleStatementLine) and not last.trailing_whitespace.comment:
            statements[-1] = last.with_changes(trailing_whitespace=line.trailing_whitespace)
        elif comment:
            statements[0] = _prefixed(statements[0], as_lines([comment.value]))
    statements[0] = _prefixed(statements[0], getattr(line, "leading_lines", ()))
    return statements


def _prefixed(statement: cst.BaseStatement, lines: Sequence[cst.EmptyLine]) -> cst.BaseStatement:
    own: Sequence[cst.EmptyLine] = getattr(statement, "leading_lines", ())
    return statement.with_changes(leading_lines=[*lines, *own]) if lines else statement


def _without_blank_start(lines: Sequence[cst.EmptyLine]) -> Sequence[cst.EmptyLine]:
    return [line for line in lines if line.comment]


def _statement(node: object) -> cst.BaseStatement:
    """Tells the type checker what LibCST's types leave open."""
    assert isinstance(node, cst.BaseStatement)
    return node
