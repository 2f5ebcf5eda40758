"""Comments as text: collected from any node, and put back as lines of their own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

import libcst as cst

Statement = TypeVar("Statement", bound=cst.BaseStatement)

_DIRECTIVE = re.compile(
    r"#\s*(noqa|nosec|type:|pyright:|mypy:|pylint:|pyre-|pytype:|ruff:|isort:|fmt:|yapf:|pragma:)",
    re.IGNORECASE,
)


def comments_in(node: cst.CSTNode) -> list[str]:
    """All comments at or below `node` in source order, each with its `#`."""
    found = []
    # A stack, not recursion: an expression of some thousand terms is deeper than Python's limit.
    stack: list[cst.CSTNode] = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, cst.Comment):
            found.append(current.value)
        else:
            stack.extend(reversed(current.children))
    return found


def as_lines(comments: Sequence[str]) -> list[cst.EmptyLine]:
    """Each comment as a line of its own, indented like the block it is put into."""
    return [cst.EmptyLine(indent=True, comment=cst.Comment(comment)) for comment in comments]


def with_leading_comments(statement: Statement, comments: Sequence[str]) -> Statement:
    """Puts `comments` as lines directly in front of a statement, behind its other leading lines."""
    if not comments:
        return statement
    leading: Sequence[cst.EmptyLine] = getattr(statement, "leading_lines", ())
    return statement.with_changes(leading_lines=[*leading, *as_lines(comments)])


def is_directive(comment: str) -> bool:
    """Whether a comment speaks to a tool, and means nothing on any other line."""
    return _DIRECTIVE.match(comment) is not None


def missing(before: Iterable[str], after: Iterable[str]) -> list[str]:
    """The comments of `before` that `after` no longer has, in their order; repeated ones count."""
    left = Counter(after)
    gone = []
    for comment in before:
        if left[comment]:
            left[comment] -= 1
        else:
            gone.append(comment)
    return gone
