"""The import editor, by example: edited in place, guards and comments kept."""

import ast
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import libcst
import pytest

from fsdp_migrate.codemods.edit.import_statement import ImportChange
from fsdp_migrate.codemods.edit.imports import edit_imports, insert_first
from fsdp_migrate.codemods.edit.text import Refused, apply
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import File

FSDP = "torch.distributed.fsdp"
RUNTIME = "fsdp_migrate.runtime"


Change = partial(ImportChange, ast.Import([]))  # of no statement yet


def edited(text: str, change: ImportChange) -> str:
    """A program after a change of its first import of `torch` or of a module of one letter."""
    file = File(Path("/nowhere/x.py"), "x.py", text)
    nodes = sorted((*file.of(ast.Import), *file.of(ast.ImportFrom)), key=file.span)
    node = next(n for n in nodes if re.match(r"(from|import) (\.*\w\b|torch)", file.source(n)))
    return apply(text, edit_imports(file, [replace(change, node=node)], 88))


@dataclass(frozen=True)
class Case:
    before: str
    change: ImportChange
    after: str


def drop(*names: str) -> ImportChange:
    return Change({*names})


def swap(name: str, new: str, module: str = FSDP) -> ImportChange:
    return Change({name}, add=[(module, new)])


def move(**names: tuple[str, str]) -> ImportChange:
    return Change(move=names)


SWAP = swap("FSDP", "fully_shard")

CASES = {
    # --- one name for another ---
    "one line with a comment above and behind": Case(
        f"# sharding\n\nfrom {FSDP} import FullyShardedDataParallel as FSDP  # noqa: E402\nimport z\n",
        SWAP,
        f"# sharding\n\nfrom {FSDP} import fully_shard  # noqa: E402\nimport z\n",
    ),
    "sorted names stay sorted as isort does": Case(
        f"from {FSDP} import FullyShardedDataParallel as FSDP, MixedPrecision, wrap\n",
        SWAP,
        f"from {FSDP} import MixedPrecision, fully_shard, wrap\n",
    ),
    "unsorted names: in the place of the old one": Case(
        f"from {FSDP} import StateDictType, FullyShardedDataParallel as FSDP, CPUOffload, wrap, MixedPrecision\n",
        SWAP,
        f"from {FSDP} import StateDictType, fully_shard, CPUOffload, wrap, MixedPrecision\n",
    ),
    "the new name takes over the comments, that of the other name stays": Case(
        f"from {FSDP} import (\n    CPUOffload,  # host\n    # wraps\n    FullyShardedDataParallel as FSDP,  # root\n)\n",
        SWAP,
        f"from {FSDP} import (\n    CPUOffload,  # host\n    # wraps\n    fully_shard,  # root\n)\n",
    ),
    "hanging indent": Case(
        "from m import (a,\n               b,  # two\n               c)\n",
        swap("a", "d", "m"),
        "from m import (b,  # two\n               c,\n               d)\n",
    ),
    "several names a line": Case(
        "from m import (\n    c, b,\n    a, d  # four\n)\n",
        Change({"a"}, add=[("m", "e"), ("m", "f")]),
        "from m import (\n    c, b,\n    d, e, f  # four\n)\n",
    ),
    "several names a line, and no room in the last": Case(
        "from m import (\n    aaaa as a, bbbb as b\n)\n",
        Change(add=[("m", "d" * 30), ("m", "e" * 50)]),
        f"from m import (\n    aaaa as a,\n    bbbb as b,\n    {'d' * 30},\n    {'e' * 50},\n)\n",
    ),
    "what was too long for a line may be short enough": Case(
        f"from {FSDP} import (\n    CPUOffload\n    ,\n    FullyShardedDataParallel as F, MixedPrecision, wrap\n)\n",
        drop("F"),
        f"from {FSDP} import CPUOffload, MixedPrecision, wrap\n",
    ),
    "backslash": Case(
        "from m import a, \\\n    b\n", swap("b", "c", "m"), "from m import a, \\\n    c\n"
    ),
    "a line that gets too long is split": Case(
        f"from {FSDP} import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy  # noqa\n",
        Change(add=[(FSDP, "fully_shard")]),
        f"from {FSDP} import (  # noqa\n    FullyShardedDataParallel as FSDP,\n    MixedPrecision,\n"
        "    ShardingStrategy,\n    fully_shard,\n)\n",
    ),
    # --- dropped ---
    "the comment behind a dropped name goes with it, that above goes in front of the statement": Case(
        "from m import (  # open\n    # zero\n    a,  # one\n    b,  # two\n    # end\n)\n",
        drop("a"),
        "# zero\nfrom m import (  # open\n    b,  # two\n    # end\n)\n",
    ),
    "a comment behind two names stays where one of them does": Case(
        "from m import (\n    a, b,  # both\n    c,\n)\n",
        drop("b"),
        "# both\nfrom m import (\n    a,\n    c,\n)\n",
    ),
    "a short statement of several lines keeps them": Case(
        "from m import (\n    a,\n    b,\n    c\n)\n",
        drop("b"),
        "from m import (\n    a,\n    c\n)\n",
    ),
    "a dropped name's noqa stays at the statement": Case(
        "from m import (\n    a,  # noqa\n    b,\n)\n", drop("a"), "from m import b  # noqa\n"
    ),
    "nothing remains but comments": Case(
        "import os\n# above\nfrom m import (  # open\n    a,  # one\n)  # noqa\n",
        drop("a"),
        "import os\n# above\n# open\n# noqa\n",
    ),
    "names that the statement does not bind are ignored": Case(
        "from m import a as b\n", drop("a"), "from m import a as b\n"
    ),
    "a star stays, added names follow": Case(
        f"from {FSDP} import *  # all\n",
        SWAP,
        f"from {FSDP} import *  # all\nfrom {FSDP} import fully_shard\n",
    ),
    # --- moved ---
    "all names move, comments and layout with them": Case(
        "from m.n import (a,  # one\n                 b as c)  # two\n",
        Change(move={"a": ("o", "a"), "c": ("o", "b")}, add=[("o", "d"), ("p", "e")]),
        "from o import (a,  # one\n               b as c,\n               d)  # two\nfrom p import e\n",
    ),
    "a moved name takes its comments along": Case(
        "from m import (\n    a,\n    # why\n    b,  # two\n    c  # in\n    as d,\n)\n",
        move(b=("n", "b")),
        "from m import (\n    a,\n    c  # in\n    as d,\n)\nfrom n import (\n    # why\n    b,  # two\n)\n",
    ),
    "modules, over a backslash": Case(
        "import torch.a.b as c, \\\n    d\n", move(c=("n.b", "")), "import n.b as c, \\\n    d\n"
    ),
    "several moved share a statement in isort's order": Case(
        f"from {FSDP} import (\n    CPUOffload,\n    FullyShardedDataParallel as FSDP,\n    StateDictType,\n)\n",
        Change(
            drop={"FSDP"},
            move={
                "StateDictType": (RUNTIME, "StateDictType"),
                "CPUOffload": (RUNTIME, "CPUOffload"),
            },
            add=[(FSDP, "fully_shard"), (RUNTIME, "save"), (RUNTIME, "VERSION")],
        ),
        f"from {RUNTIME} import VERSION, CPUOffload, StateDictType, save\n"
        f"from {FSDP} import fully_shard\n",
    ),
    "a re-export stays a re-export": Case(
        "from m import a as a\n", move(a=("n", "a")), "from n import a as a\n"
    ),
    "but not above the comment of the old statement": Case(
        "import os\n# on torch\nfrom torch.x import a, b\n",
        Change(drop={"a"}, add=[("fsdp.x", "c")]),
        "import os\n# on torch\nfrom torch.x import b\nfrom fsdp.x import c\n",
    ),
    # --- lines and blocks ---
    "joined by a semicolon, what is needed at once stays on the line": Case(
        "from m import a; x = a\n", swap("a", "b", "n"), "from n import b; x = a\n"
    ),
    "a final semicolon stays": Case("from m import a, b;\n", drop("a"), "from m import b;\n"),
    "guarded in one line, more than a line remains": Case(
        "try: from m import a  # new\nexcept ImportError: a = None\n",
        Change(add=[("n", "b")]),
        "try: from m import a; from n import b  # new\nexcept ImportError: a = None\n",
    ),
    "for type checkers": Case(
        "if TYPE_CHECKING:\n    from m import a, b  # types\n",
        move(a=("n", "a")),
        "if TYPE_CHECKING:\n    from m import b  # types\n    from n import a\n",
    ),
    "lazy and too long for its line": Case(
        f"def f():\n\tfrom {FSDP} import FullyShardedDataParallel as FSDP, MixedPrecision, StateDictType\n",
        Change(add=[(FSDP, "fully_shard")]),
        f"def f():\n\tfrom {FSDP} import (\n\t    FullyShardedDataParallel as FSDP,\n\t    MixedPrecision,\n"
        "\t    StateDictType,\n\t    fully_shard,\n\t)\n",
    ),
    "CRLF": Case(
        "from m import (\r\n    a,  # one\r\n    b,\r\n)\r\n",
        Change(drop={"b"}, add=[("m", "c"), ("n", "d")]),
        "from m import (\r\n    a,  # one\r\n    c,\r\n)\r\nfrom n import d\r\n",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_edit(case: Case) -> None:
    assert edited(case.before, case.change) == case.after


FIRST = {
    "behind a docstring": ('"""Doc."""\nx = 1\n', '"""Doc."""\n\nfrom n import b\n\nx = 1\n'),
    "in front of all": ("x = 1\n", "from n import b\n\nx = 1\n"),
    "below the file's comment": (
        "#!/bin/python\n# Licence\nx = 1\n",
        "#!/bin/python\n# Licence\n\nfrom n import b\n\nx = 1\n",
    ),
    "into CRLF": ("x = 1\r\n", "from n import b\r\n\r\nx = 1\r\n"),
}


@pytest.mark.parametrize(("before", "after"), FIRST.values(), ids=FIRST)
def test_first_import_of_a_file(before: str, after: str) -> None:
    file = File(Path("/nowhere/x.py"), "x.py", before)
    assert apply(before, insert_first(file, [("n", "b")], 88)) == after


def test_an_emptied_block_keeps_its_comments() -> None:
    before = "if x:  # head\n    from m import a\n    # foot\ny = 1\n"
    assert edited(before, drop("a")) == "if x:  # head\n    pass\n    # foot\ny = 1\n"


def test_a_block_that_loses_its_first_statement_begins_with_no_empty_line() -> None:
    before = "def f():\n    from m import a\n\n    # foot\n    y = 1\n"
    assert edited(before, drop("a")) == "def f():\n    # foot\n    y = 1\n"
    assert edited("# of m:\nfrom m import a\n\ny = 1\n", drop("a")) == "# of m:\n\ny = 1\n"


def test_a_comment_that_would_be_lost_is_refused() -> None:
    with pytest.raises(Refused, match="# one"):
        apply("a = 1  # one\n", [Edit(0, 12, "b = 2")])


def test_two_edits_of_one_place_are_refused() -> None:
    with pytest.raises(Refused, match="same code"):
        apply("abc\n", [Edit(0, 2, "x"), Edit(1, 3, "y")])


def test_a_result_that_does_not_parse_is_refused() -> None:
    with pytest.raises(Refused, match="not parse"):
        apply("abc\n", [Edit(0, 1, "(")])


def test_a_comment_keeps_the_space_at_its_end_on_other_lines() -> None:
    text = f"from {FSDP} import FSDP  # why \n"
    long = Change(add=[(FSDP, "a" * 30), (FSDP, "b" * 30)])
    assert edited(text, long).startswith(f"from {FSDP} import (  # why \n")


def test_syntax_newer_than_libcsts_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    error = libcst.ParserSyntaxError("new", lines=[], raw_line=1, raw_column=0)
    monkeypatch.setattr(libcst, "parse_module", Mock(side_effect=error))
    before = "from m import (\n    a,  # one\n    b,\n)\n"
    assert edited(before, drop("b")) == "# one\nfrom m import a\n"


def test_a_comment_around_as_stays_where_another_name_comes() -> None:
    text = f"from {FSDP} import (\n    FSDP as\n    # why\nF,\n)\n"
    after = f"# why\nfrom {FSDP} import (\n    fully_shard,\n)\n"
    assert edited(text, swap("F", "fully_shard")) == after
