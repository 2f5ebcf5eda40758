"""Arguments taken out of a call as text."""

import ast
from itertools import chain, combinations
from pathlib import Path

import pytest

from fsdp_migrate.codemods.edit.text import Refused, apply, drop_items
from fsdp_migrate.facts.file import File

LAYOUTS = (
    "f(a, b, c)\n",
    "f(a, b, k=c,)\n",
    "f(a,\n  b,\n  c)\n",
    "f(\n    a, b,\n    c\n)\n",
    "f(\n    a,\n\n    b,\n    k=c,\n)\n",
    "f(\r\n    a,\r\n    b,\r\n    c,\r\n)\r\n",
)


def without(source: str, dropped: tuple[int, ...]) -> str:
    file = File(Path("program.py"), "program.py", source)
    (call,) = file.of(ast.Call)
    spans = [file.span(each) for each in (*call.args, *call.keywords)]
    return apply(source, drop_items(source, spans, dropped))


@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize("dropped", [*chain(*(combinations(range(3), n) for n in (1, 2)))], ids=str)
def test_the_others_stay(source: str, dropped: tuple[int, ...]) -> None:
    after = without(source, dropped)
    kept = [name for index, name in enumerate("abc") if index not in dropped]
    (call,) = (node for node in ast.walk(ast.parse(after)) if isinstance(node, ast.Call))
    assert [ast.unparse(each) for each in call.args + [k.value for k in call.keywords]] == kept
    assert ("\r\n" in after) == ("\r" in source)
    assert after.count("\r") == after.count("\r\n")


def test_lines_of_its_own_go() -> None:
    assert without(LAYOUTS[4], (1,)) == "f(\n    a,\n    k=c,\n)\n"
    assert without(LAYOUTS[4], (0, 2)) == "f(\n\n    b,\n)\n"


@pytest.mark.parametrize(
    "source", ["f(\n    a,\n    # why\n    b,\n    c,\n)\n", "f(a,  # why\n  b, c)\n"]
)
def test_a_comment_is_not_lost_unseen(source: str) -> None:
    with pytest.raises(Refused, match="why"):
        without(source, (1,))


def test_parentheses_are_not_cut_apart() -> None:
    with pytest.raises(Refused, match="parse"):
        without("f(a, (b), c)\n", (1,))
    with pytest.raises(Refused, match="parse"):
        without("f((\n    a\n  ), b, c)\n", (0,))
