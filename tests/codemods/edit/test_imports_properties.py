"""The import editor on random statements, layouts, comments and edits."""

import ast
import io
import re
import tokenize
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdp_migrate.codemods.edit.import_statement import ImportChange
from fsdp_migrate.codemods.edit.imports import edit_imports
from fsdp_migrate.codemods.edit.text import apply
from fsdp_migrate.facts.file import File

NAMES = ["FSDP", "MixedPrecision", "MAX", "wrap", "a1", "a10", "a2", "Zz", "_p"]
MODULES = ["m", "m.n", ".m", ".", "..k"]


@dataclass
class Source:
    """A line of statements, and what it binds: local name to (module, name)."""

    text: str = ""
    module: str = "m"
    names: dict[str, str] = field(default_factory=dict)


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
        gap = draw(st.sampled_from([" ", whitespace(parenthesized)]))
        text += name if local == name else f"{name}{gap}as {local}"
        text += draw(st.sampled_from(["", "", whitespace(parenthesized)])) if parenthesized else ""
        if position < len(names) - 1:
            text += "," + whitespace(parenthesized)
        elif parenthesized:
            text += draw(st.sampled_from(["", ","])) + whitespace(True)
    text += ")" if parenthesized else ""
    before = draw(st.sampled_from(["", "", "import os; "]))
    after = draw(st.sampled_from(["", "", "; x = 1", "; from o import q"]))
    leading = f"{comment()}\n\n" if draw(st.booleans()) else ""
    trailing = f"  {comment()}" if draw(st.booleans()) else ""
    # The first lines of a file are the module's, not the statement's.
    source.text = f"first = 0\n{leading}{before}{text}{after}{trailing}\n"
    return source


@st.composite
def changes_of(draw: st.DrawFn, source: Source) -> ImportChange:
    change = ImportChange(ast.Import([]))
    for local in source.names:
        match draw(st.integers(0, 3)):
            case 0:
                change.drop.add(local)
            case 1:
                target = draw(st.sampled_from([source.module, "runtime", ".other"]))
                change.move[local] = (target, draw(st.sampled_from([source.names[local], "New"])))
    new = st.tuples(st.sampled_from([source.module, "runtime"]), st.sampled_from(["x", "Y", "Q"]))
    change.add = draw(st.lists(new, max_size=3))
    return change


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


def expected(source: Source, change: ImportChange) -> Counter[tuple[str, str, str]]:
    result = bindings(source.text)
    for local, name in source.names.items():
        if local in change.move or local in change.drop:
            del result[source.module, name, local]
    result.update((*change.move[local], local) for local in change.move)
    bound = {local for _, _, local in result}
    result.update((m, n, n) for m, n in set(change.add) if n not in bound)
    return result


def edited(text: str, source: Source, change: ImportChange) -> str:
    """A program after a change of the statement that a source describes."""
    file = File(Path("/nowhere/x.py"), "x.py", text)
    beginning = f"from {source.module} import"
    node = next(n for n in file.of(ast.ImportFrom) if file.source(n).startswith(beginning))
    return apply(text, edit_imports(file, [replace(change, node=node)], 88))


@pytest.mark.parametrize("guard", ["", "if x: "])
@given(st.data())
def test_a_statement_binds_what_is_asked_for_and_keeps_comments(
    guard: str, data: st.DataObject
) -> None:
    source = data.draw(lines())
    change = data.draw(changes_of(source))
    text = source.text.replace("first = 0\n", "", 1)
    if text.startswith("#"):
        text = text.split("\n\n", 1)[1]
    text = f"first = 0\n{guard}{text}"
    code = edited(text, source, change)

    assert bindings(code) == expected(source, change)
    assert comments_of(code) <= comments_of(text)
    for comment in comments_of(text) - comments_of(code):
        line = next(line for line in text.splitlines() if line.endswith(comment))
        names = set(re.findall(r"\w+", line.partition("#")[0])) - {"as", "from", "import"}
        assert names & {*change.drop, *(source.names[local] for local in change.drop)}


@given(lines())
def test_an_empty_change_leaves_every_byte(source: Source) -> None:
    assert edited(source.text, source, ImportChange(ast.Import([]))) == source.text
