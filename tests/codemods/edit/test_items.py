"""Items between commas: what LibCST reads around them, and what stays there when some go or come."""

from __future__ import annotations

import ast
from itertools import chain, combinations

import pytest

from fsdp_migrate.codemods.edit.items import read
from fsdp_migrate.codemods.edit.text import comments
from fsdp_migrate.facts.file import NEWLINE

LAYOUTS = (
    "f(a, b, c)",
    "f(a , b, k=c,)",
    "f(a,  # one\n  # two\n  b,\n  c)",
    "f(  # zero\n    a, b,  # one\n    c  # two\n    # three\n)",
    "f(\n    a\n    # one\n    ,\n\n    (b),  # two\n    k=c,\n)",
    "f(\r\n    a,  # one\r\n    b,\r\n    c,\r\n)",
    "f(\ra,\r# one\rb,\rc)",
    "{a: 0,  # one\n b: 0, c: 0}",
    "from m import a, \\\n    b, c",
)


@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize("dropped", [*chain(*(combinations(range(3), n) for n in (0, 1, 2)))])
@pytest.mark.parametrize("added", range(4))
def test_the_others_and_all_comments_stay(
    source: str, dropped: tuple[int, ...], added: int
) -> None:
    items = read(source)
    assert items.code == source
    new = "d: 0" if source[0] == "{" else "k=d" if "k=" in source and added == 3 else "d"
    gone = [items.items[place] for place in dropped]
    items.insert(added, new)
    for item in gone:
        items.drop(item, comments(item.text))
    kept = [name for place, name in enumerate("abc") if place not in dropped]
    kept.insert(added - sum(place < added for place in dropped), "d")
    nodes = [*ast.walk(ast.parse(items.code))]
    names = [getattr(each, "id", getattr(each, "name", "f")) for each in nodes]
    assert [name for name in names if name != "f"] == kept
    assert sorted(comments(items.code)) == sorted(comments(source))
    assert {*NEWLINE.findall(items.code)} <= {*NEWLINE.findall(source)}
