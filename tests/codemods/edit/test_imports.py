"""The import editor, by example: edited in place, guards and comments kept."""

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fsdp_migrate.codemods.edit.imports import ImportChange, edit_imports, insert_first
from fsdp_migrate.codemods.edit.text import Refused, apply
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import File

FSDP = "torch.distributed.fsdp"
RUNTIME = "fsdp_migrate.runtime"


@dataclass(frozen=True)
class Change:
    """What is asked of a statement, as `ImportChange` has it."""

    drop: frozenset[str] = frozenset()
    move: dict[str, tuple[str, str]] = field(default_factory=dict)
    add: tuple[tuple[str, str], ...] = ()


def edited(text: str, change: Change) -> str:
    """A program after a change of its first import of `torch` or of a module of one letter."""
    file = File(Path("/nowhere/x.py"), "x.py", text)
    nodes = sorted((*file.of(ast.Import), *file.of(ast.ImportFrom)), key=file.span)
    node = next(n for n in nodes if re.match(r"(from|import) (\.*\w\b|torch)", file.source(n)))
    asked = ImportChange(node, {*change.drop}, {**change.move}, [*change.add])
    return apply(text, edit_imports(file, [asked], 88))


@dataclass(frozen=True)
class Case:
    before: str
    change: Change
    after: str


def drop(*names: str) -> Change:
    return Change(frozenset(names))


def swap(name: str, new: str, module: str = FSDP) -> Change:
    return Change(frozenset({name}), add=((module, new),))


def move(**names: tuple[str, str]) -> Change:
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
    "unsorted names: behind the others": Case(
        f"from {FSDP} import StateDictType, FullyShardedDataParallel as FSDP, CPUOffload, wrap, MixedPrecision\n",
        SWAP,
        f"from {FSDP} import StateDictType, CPUOffload, wrap, MixedPrecision, fully_shard\n",
    ),
    "a line that gets too long is split": Case(
        f"from {FSDP} import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy  # noqa\n",
        Change(add=((FSDP, "fully_shard"),)),
        f"from {FSDP} import (  # noqa\n    FullyShardedDataParallel as FSDP,\n    MixedPrecision,\n"
        "    ShardingStrategy,\n    fully_shard,\n)\n",
    ),
    # --- dropped ---
    "a dropped name's noqa stays at the statement": Case(
        "from m import (\n    a,  # noqa\n    b,\n)\n", drop("a"), "from m import b  # noqa\n"
    ),
    "nothing remains but comments": Case(
        "import os\n# above\nfrom m import (  # open\n    a,  # one\n)  # noqa\n",
        drop("a"),
        "import os\n# above\n# open\n# one\n# noqa\n",
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
        f"from {FSDP} import (StateDictType,  # full\n    MixedPrecision as M)  # half\n",
        Change(
            move={"StateDictType": (RUNTIME, "StateDictType"), "M": (RUNTIME, "MixedPrecision")},
            add=((FSDP, "fully_shard"),),
        ),
        f"from {RUNTIME} import (StateDictType,  # full\n    MixedPrecision as M)  # half\n"
        f"from {FSDP} import fully_shard\n",
    ),
    "moved under another name": Case(
        f"from {FSDP} import MixedPrecision\n",
        move(MixedPrecision=(RUNTIME, "Precision")),
        f"from {RUNTIME} import Precision as MixedPrecision\n",
    ),
    "several moved share a statement in isort's order": Case(
        f"from {FSDP} import (\n    CPUOffload,\n    FullyShardedDataParallel as FSDP,\n    StateDictType,\n)\n",
        Change(
            drop=frozenset({"FSDP"}),
            move={
                "StateDictType": (RUNTIME, "StateDictType"),
                "CPUOffload": (RUNTIME, "CPUOffload"),
            },
            add=((FSDP, "fully_shard"), (RUNTIME, "save"), (RUNTIME, "VERSION")),
        ),
        f"from {RUNTIME} import VERSION, CPUOffload, StateDictType, save\n"
        f"from {FSDP} import fully_shard\n",
    ),
    "in the place of the old statement": Case(
        "# above\n\nfrom m import a  # noqa\nx = 1\n",
        move(a=("n", "a")),
        "# above\n\nfrom n import a  # noqa\nx = 1\n",
    ),
    "a re-export stays a re-export": Case(
        "from m import a as a\n", move(a=("n", "a")), "from n import a as a\n"
    ),
    "but not above the comment of the old statement": Case(
        "import os\n# on torch\nfrom torch.x import a, b\n",
        Change(drop=frozenset("a"), add=(("fsdp.x", "c"),)),
        "import os\n# on torch\nfrom torch.x import b\nfrom fsdp.x import c\n",
    ),
    # --- lines and blocks ---
    "joined by a semicolon, what is needed at once stays on the line": Case(
        "from m import a; x = a\n", swap("a", "b", "n"), "from n import b; x = a\n"
    ),
    "a final semicolon stays": Case("from m import a, b;\n", drop("a"), "from m import b;\n"),
    "guarded by try, nothing remains": Case(
        "try:\n    from m import a\nexcept ImportError:\n    a = None\n",
        drop("a"),
        "try:\n    pass\nexcept ImportError:\n    a = None\n",
    ),
    "guarded in one line, more than a line remains": Case(
        "try: from m import a  # new\nexcept ImportError: a = None\n",
        Change(add=(("n", "b"),)),
        "try: from m import a; from n import b  # new\nexcept ImportError: a = None\n",
    ),
    "for type checkers": Case(
        "if TYPE_CHECKING:\n    from m import a, b  # types\n",
        move(a=("n", "a")),
        "if TYPE_CHECKING:\n    from m import b  # types\n    from n import a\n",
    ),
    "lazy and too long for its line": Case(
        f"def f():\n\tfrom {FSDP} import FullyShardedDataParallel as FSDP, MixedPrecision, StateDictType\n",
        Change(add=((FSDP, "fully_shard"),)),
        f"def f():\n\tfrom {FSDP} import (\n\t    FullyShardedDataParallel as FSDP,\n\t    MixedPrecision,\n"
        "\t    StateDictType,\n\t    fully_shard,\n\t)\n",
    ),
    "CRLF": Case(
        "from m import (\r\n    a,  # one\r\n    b,\r\n)\r\n",
        Change(drop=frozenset("b"), add=(("m", "c"), ("n", "d"))),
        "# one\r\nfrom m import (\r\n    a,\r\n    c,\r\n)\r\nfrom n import d\r\n",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_edit(case: Case) -> None:
    assert edited(case.before, case.change) == case.after


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_edits_leave_every_byte(case: Case) -> None:
    assert edited(case.before, Change()) == case.before


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


def test_a_comment_that_would_be_lost_is_refused() -> None:
    with pytest.raises(Refused, match="# one"):
        apply("a = 1  # one\n", [Edit(0, 12, "b = 2")])


def test_two_edits_of_one_place_are_refused() -> None:
    with pytest.raises(Refused, match="same code"):
        apply("abc\n", [Edit(0, 2, "x"), Edit(1, 3, "y")])


def test_a_result_that_does_not_parse_is_refused() -> None:
    with pytest.raises(Refused, match="not parse"):
        apply("abc\n", [Edit(0, 1, "(")])


def test_names_that_no_line_holds_get_lines_of_their_own() -> None:
    text = f"from {FSDP} import (StateDictType as T,\n    MixedPrecision as M,\n    FullyShardedDataParallel as FSDP)\n"
    others = Change(frozenset({"FSDP", "M", "T"}), add=((FSDP, "a" * 30), (FSDP, "b" * 30)))
    exploded = f"from {FSDP} import (\n    {'a' * 30},\n    {'b' * 30},\n)\n"
    assert edited(text, others) == exploded


def test_a_comment_keeps_the_space_at_its_end_on_other_lines() -> None:
    text = f"from {FSDP} import FSDP  # why \n"
    long = Change(add=((FSDP, "a" * 30), (FSDP, "b" * 30)))
    assert edited(text, long).startswith(f"from {FSDP} import (  # why \n")


def test_a_comment_around_as_stays_where_another_name_comes() -> None:
    text = f"from {FSDP} import (\n    FSDP as\n    # why\nF,\n)\n"
    after = f"# why\nfrom {FSDP} import fully_shard\n"
    assert edited(text, swap("F", "fully_shard")) == after
