"""Comments as text."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path

import libcst as cst
import pytest

from fsdp_migrate.codemods.edit.comments import (
    as_lines,
    comments_in,
    is_directive,
    missing,
    with_leading_comments,
)

SOURCE = """\
# header
@d  # decorator
# between
def f(  # open
    a,  # one
    *,  # star
    b=1,
    # close
) -> int:  # head
    # lead
    x = [y  # y
         for y in z  # z
         if y]  # if
    with a as b, c as d:  # with
        pass
        # foot
    try:  # try
        pass
    # before except
    except E:  # except
        pass
    else:  # else
        pass
    return (  # return
        {  # brace
            'k':  # key
            1,
            **q,  # rest
        }
    )
# footer
"""


def test_comments_come_in_source_order() -> None:
    tokens = tokenize.generate_tokens(io.StringIO(SOURCE).readline)
    expected = [token.string for token in tokens if token.type == tokenize.COMMENT]
    assert comments_in(cst.parse_module(SOURCE)) == expected


@pytest.mark.parametrize("path", sorted(Path(cst.__file__).parent.glob("codemod/*.py")), ids=str)
def test_comments_of_real_files(path: Path) -> None:
    with tokenize.open(path) as file:
        tokens = list(tokenize.generate_tokens(file.readline))
    expected = [token.string for token in tokens if token.type == tokenize.COMMENT]
    assert comments_in(cst.parse_module(path.read_bytes())) == expected


def test_comments_of_a_very_deep_expression() -> None:
    node: cst.BaseExpression = cst.Name("a")
    for _ in range(3000):
        node = cst.UnaryOperation(cst.Not(), node)
    assert comments_in(node) == []


@pytest.mark.parametrize(
    "statement", ["x = 1\n", "if a:\n    x = 1\n", "@d\ndef f(): pass\n", "for a in b: pass\n"]
)
def test_leading_comments_go_directly_in_front(statement: str) -> None:
    module = cst.parse_module("first\n\n# there\n" + statement)
    changed = with_leading_comments(module.body[1], ["# one", "# two"])
    code = module.with_changes(body=[module.body[0], changed]).code
    assert code == "first\n\n# there\n# one\n# two\n" + statement


def test_no_comments_change_nothing() -> None:
    statement = cst.parse_module("x = 1\n").body[0]
    assert with_leading_comments(statement, []) is statement
    assert as_lines([]) == []


def test_directives_are_told_from_remarks() -> None:
    assert is_directive("# noqa: F401")
    assert is_directive("#type: ignore")
    assert not is_directive("# the type: is known")


def test_missing_counts_repeated_comments() -> None:
    assert missing(["# a", "# b", "# a"], ["# a"]) == ["# b", "# a"]
