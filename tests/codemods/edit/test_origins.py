"""Each line of a program after its edits has the line that it comes from."""

from fsdp_migrate.codemods.edit.text import origins, spliced
from fsdp_migrate.codemods.rule import Edit

TEXT = "a\nb = f(\n    c,\n)\nd\n"


def test_without_edits_each_line_is_its_own() -> None:
    assert origins(TEXT, []) == (1, 2, 3, 4, 5, 6)


def test_what_is_written_comes_from_where_it_is_written() -> None:
    start = TEXT.index("b =")
    edits = [
        Edit(start, start, "with x:\n"),
        Edit(start, TEXT.index(")") + 1, "    g(\n        c)"),
        Edit(0, 2, ""),
        Edit(len(TEXT), len(TEXT), "e\nf"),
    ]
    lines = spliced(TEXT, edits).split("\n")
    assert lines == ["with x:", "    g(", "        c)", "d", "e", "f"]
    assert origins(TEXT, edits) == (2, 2, 2, 5, 6, 6)
