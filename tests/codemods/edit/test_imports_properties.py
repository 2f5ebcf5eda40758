"""The import editor on random statements, layouts, comments and edits."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from dataclasses import dataclass, field

import libcst as cst
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdp_migrate.codemods.edit.imports import (
    ImportEdit,
    edit_import_line,
    edit_import_suite,
    insert_imports,
    lost_comments,
)

NAMES = ["FSDP", "MixedPrecision", "MAX", "wrap", "a1", "a10", "a2", "Zz", "_p"]
MODULES = ["m", "m.n", ".m", ".", "..k"]


@dataclass
class Source:
    """A line of statements, and what it binds: local name to (module, name)."""

    text: str = ""
    module: str = "m"
    position: int = 0
    names: dict[str, str] = field(default_factory=dict)
    others: int = 0


@st.composite
def lines(draw: st.DrawFn) -> Source:
    source = Source(module=draw(st.sampled_from(MODULES)))
    count = 0

    def comment() -> str:
        nonlocal count
        count += 1
        return f"# c{count}"

    def whitespace(parenthesized: bool) -> str:
        if not parenthesized or draw(st.booleans()):
            return draw(st.sampled_from([" ", " \\\n  "]))
        text = f"  {comment()}\n" if draw(st.booleans()) else "\n"
        for _ in range(draw(st.integers(0, 2))):
            text += f"    {comment()}\n" if draw(st.booleans()) else "\n"
        return text + "    "

    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    if draw(st.booleans()):
        names.sort()
    parenthesized = draw(st.booleans())
    text = f"from {source.module} import " + ("(" if parenthesized else "")
    if parenthesized:
        text += whitespace(True)
    for position, name in enumerate(names):
        local = draw(st.sampled_from([name, name, f"{name}_", name]))
        source.names[local] = name
        text += name if local == name else f"{name} as {local}"
        if position < len(names) - 1:
            text += "," + whitespace(parenthesized)
        elif parenthesized:
            text += draw(st.sampled_from(["", ","])) + whitespace(True)
    text += ")" if parenthesized else ""
    before = draw(st.sampled_from(["", "", "import os; "]))
    after = draw(st.sampled_from(["", "", "; x = 1", "; from o import q"]))
    source.position = bool(before)
    source.others = bool(before) + bool(after)
    leading = f"{comment()}\n\n" if draw(st.booleans()) else ""
    trailing = f"  {comment()}" if draw(st.booleans()) else ""
    # The first lines of a file are the module's, not the statement's.
    source.text = f"first = 0\n{leading}{before}{text}{after}{trailing}\n"
    return source


@st.composite
def edits_of(draw: st.DrawFn, source: Source) -> ImportEdit:
    drop, move = set(), {}
    for local in source.names:
        match draw(st.integers(0, 3)):
            case 0:
                drop.add(local)
            case 1:
                target = draw(st.sampled_from([source.module, "runtime", ".other"]))
                move[local] = (target, draw(st.sampled_from([source.names[local], "New"])))
    new = st.tuples(st.sampled_from([source.module, "runtime"]), st.sampled_from(["x", "Y", "Q"]))
    return ImportEdit(frozenset(drop), move, draw(st.lists(new, max_size=3)))


def bindings(code: str) -> Counter[tuple[str, str, str]]:
    return Counter(
        ("." * node.level + (node.module or ""), alias.name, alias.asname or alias.name)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    )


def comments_of(code: str) -> Counter[str]:
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return Counter(token.string for token in tokens if token.type == tokenize.COMMENT)


def expected(source: Source, edit: ImportEdit) -> Counter[tuple[str, str, str]]:
    result = bindings(source.text)
    for local, name in source.names.items():
        if local in edit.move or local in edit.drop:
            del result[source.module, name, local]
    result.update((*edit.move[local], local) for local in edit.move)
    bound = {local for _, _, local in result}
    result.update((m, n, n) for m, n in set(edit.add) if n not in bound)
    return result


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_line_binds_what_is_asked_for_and_keeps_every_comment(data: st.DataObject) -> None:
    source = data.draw(lines())
    edit = data.draw(edits_of(source))
    module = cst.parse_module(source.text)
    line = cst.ensure_type(module.body[-1], cst.SimpleStatementLine)
    statements = edit_import_line(line, {source.position: edit})
    lost = lost_comments(line, {source.position: edit})
    code = module.with_changes(body=[module.body[0], *statements]).code

    assert bindings(code) == expected(source, edit)
    assert comments_of(code) + Counter(lost) == comments_of(source.text)
    assert not (statements and lost)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_suite_binds_what_is_asked_for_and_keeps_every_comment(data: st.DataObject) -> None:
    source = data.draw(lines())
    edit = data.draw(edits_of(source))
    line = source.text[len("first = 0\n") :]
    text = "if x: " + (line.split("\n\n", 1)[1] if line.startswith("#") else line)
    module = cst.parse_module(text)
    statement = cst.ensure_type(module.body[0], cst.If)
    suite = cst.ensure_type(statement.body, cst.SimpleStatementSuite)
    edited = edit_import_suite(suite, {source.position: edit})
    code = module.with_changes(body=[statement.with_changes(body=edited)]).code

    assert bindings(code) == expected(source, edit)
    assert comments_of(code) == comments_of(text)


@settings(max_examples=200, deadline=None)
@given(lines())
def test_empty_edits_leave_every_byte(source: Source) -> None:
    module = cst.parse_module(source.text)
    line = cst.ensure_type(module.body[-1], cst.SimpleStatementLine)
    assert edit_import_line(line, {source.position: ImportEdit()}) == [line]


@settings(max_examples=200, deadline=None)
@given(lines(), st.lists(st.tuples(st.sampled_from(MODULES), st.sampled_from("ab")), min_size=1))
def test_inserting_is_idempotent_and_keeps_every_comment(
    source: Source, names: list[tuple[str, str]]
) -> None:
    module = cst.parse_module(source.text)
    once = insert_imports(module, names)
    assert comments_of(once.code) == comments_of(source.text)
    assert {(m, n, n) for m, n in names} <= set(bindings(once.code))
    assert insert_imports(once, names).code == once.code
