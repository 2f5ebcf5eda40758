"""Statements put into a file, by example."""

from __future__ import annotations

import libcst as cst
import pytest

from fsdp_migrate.codemods.edit.comments import comments_in
from fsdp_migrate.codemods.edit.statements import (
    dedent_body,
    ensure_body,
    parse_statements,
    replace_statement,
)

GENERATED = (
    "for module in modules:\n"
    "  fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=MixedPrecisionPolicy('bf16'))\n"
)
FORMATTED = """\
for module in modules:
    fully_shard(
        module,
        mesh=mesh,
        reshard_after_forward=True,
        mp_policy=MixedPrecisionPolicy('bf16'),
    )
"""


def appended(module: cst.Module, statements: list[cst.BaseStatement]) -> str:
    return module.with_changes(body=[*module.body, *statements]).code


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        pytest.param("x = 1\n", FORMATTED, id="formatted as black does, quotes as they are"),
        pytest.param("x = 1\r\n", FORMATTED.replace("\n", "\r\n"), id="in the file's line endings"),
        pytest.param("if x:\n\ty\n", FORMATTED.replace("    ", "\t"), id="in the file's tabs"),
        pytest.param(
            "if x:\n  y\n", FORMATTED.replace("    ", "  "), id="in the file's two columns"
        ),
    ],
)
def test_parse_statements(file: str, expected: str) -> None:
    module = cst.parse_module(file)
    assert appended(module, parse_statements(GENERATED, module)) == file + expected


def test_parse_statements_leaves_room_for_the_indentation() -> None:
    source = "f(aaaaaaaaaaaaaaaaaaaaaaaaaaaaa, bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb, ccccccccccccc)"
    module = cst.Module([])
    assert "\n" not in appended(module, parse_statements(source, module)).strip()
    assert "\n" in appended(module, parse_statements(source, module, indent=16)).strip()
    wide = parse_statements(source, module, line_length=120, indent=16)
    assert "\n" not in appended(module, wide).strip()


def test_parse_statements_keeps_comments() -> None:
    module = cst.Module([])
    source = "\n# above\nx = 1  # end\ny = 2\n# below\n"
    assert appended(module, parse_statements(source, module)) == (
        "# above\nx = 1  # end\n# below\ny = 2\n"
    )


def test_parse_statements_leaves_strings_alone() -> None:
    module = cst.parse_module("if x:\n\ty\n")
    source = 'x = f(\n    """a\n    b"""\n)\n'
    assert '"""a\n    b"""' in appended(module, parse_statements(source, module))


def test_parse_statements_of_nothing() -> None:
    assert parse_statements("", cst.Module([])) == []


def body_of(source: str) -> cst.IndentedBlock:
    with_ = cst.ensure_type(cst.parse_module(source).body[0], cst.With)
    return cst.ensure_type(with_.body, cst.IndentedBlock)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("with a:\n    x\n    y\n", "x\ny\n", id="statements in order"),
        pytest.param("with a:  # why\n    x\n", "# why\nx\n", id="the first line's comment"),
        pytest.param(
            "with a:  # why\n    # lead\n    x  # end\n    # foot\n",
            "# why\n# lead\n# foot\nx  # end\n",
            id="comments above and below",
        ),
        pytest.param(
            "with a:\n    f(\n        x,  # one\n    )\n    if y:\n        z\n    # foot\n",
            "f(\n    x,  # one\n)\n# foot\nif y:\n    z\n",
            id="lines and blocks follow",
        ),
        pytest.param(
            'with a:\n    s = """\n    x\n"""\n', 's = """\n    x\n"""\n', id="strings stay"
        ),
    ],
)
def test_dedent_body(before: str, after: str) -> None:
    statements = dedent_body(body_of(before))
    assert cst.Module(statements).code == after  # type: ignore[arg-type]


def test_dedent_body_without_statements() -> None:
    block = cst.IndentedBlock([], header=cst.TrailingWhitespace(comment=cst.Comment("# why")))
    assert cst.Module(dedent_body(block)).code == "# why\npass\n"  # type: ignore[arg-type]
    assert dedent_body(cst.IndentedBlock([])) == []


@pytest.mark.parametrize(
    ("old", "new", "after"),
    [
        pytest.param("\n# lead\nold  # end\n", "new\n", "\n# lead\nnew  # end\n", id="one for one"),
        pytest.param("# lead\nold  # end\n", "a\nb\n", "# lead\na\nb  # end\n", id="two for one"),
        pytest.param(
            "old  # end\n", "for a in b:\n    c\n", "# end\nfor a in b:\n    c\n", id="a block"
        ),
        pytest.param("old  # end\n", "a  # own\n", "# end\na  # own\n", id="with its own comment"),
        pytest.param("# lead\nif old:\n    x\n", "a\n", "# lead\na\n", id="for a block"),
    ],
)
def test_replace_statement(old: str, new: str, after: str) -> None:
    # The first lines of a file are the module's, not the statement's.
    line = cst.parse_module("first\n" + old).body[1]
    statements = replace_statement(line, list(cst.parse_module(new).body))
    assert cst.Module(statements).code == after  # type: ignore[arg-type]


def test_replaced_by_nothing() -> None:
    assert replace_statement(cst.parse_module("old  # end\n").body[0], []) == []


def test_ensure_body() -> None:
    header = cst.TrailingWhitespace(comment=cst.Comment("# why"))
    footer = [cst.EmptyLine(comment=cst.Comment("# foot"))]
    block = ensure_body(cst.IndentedBlock([], header=header, footer=footer))
    assert comments_in(block) == ["# why", "# foot"]
    assert len(block.body) == 1
    assert ensure_body(block) is block
    assert len(ensure_body(cst.SimpleStatementSuite([])).body) == 1
