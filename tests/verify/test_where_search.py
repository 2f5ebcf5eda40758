"""The search for the lines that differ, on programs without torch: what is reported, what comes from it, and what is noise."""

import importlib.util
import time
from pathlib import Path

import pytest

from fsdp_migrate.verify.launch import RECORDER
from fsdp_migrate.verify.where import traces
from fsdp_migrate.verify.where.forms import Grade, grade, only_numbers
from fsdp_migrate.verify.where.lines import MOST, Line, shortened
from fsdp_migrate.verify.where.mapping import Mapping
from fsdp_migrate.verify.where.runs import compare, differing

from .traced import HERE, trace

VERSIONS = (HERE, *(version for version in ("3.10", "3.12", "3.13") if version != HERE))


def found(old: str, new: str, folder: Path, version: str = HERE, lines: int = 10_000) -> list[Line]:
    """The lines at which two programs differ; the old one runs twice, to know what differs anyway."""
    programs = [
        trace(text, folder / name, version, lines)
        for name, text in (("original", old), ("migrated", new), ("again", old))
    ]
    one, other, twin = (traces.read(program.source) for program in programs)
    noise = differing(Mapping(programs[0], programs[2]), one, twin)
    return compare(Mapping(*programs[:2]), one, other, noise)


def places(lines: list[Line]) -> list[int]:
    return [line.line for line in lines]


LOOPS = """\
def pick(names):
    chosen = []
    for name in names:
        if name.startswith("head"):
            chosen.append(name)
        else:
            rest = len(name)
    return chosen


names = NAMES
chosen = pick(names)
rate = 0.1 / (1 + len(chosen))
print(rate)
steps = [n for n in range(3)]
last = max(len(name) for name in ["x", "yy"])
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_the_way_that_a_line_goes_on_has_both_lines_and_what_it_read(
    version: str, tmp_path: Path
) -> None:
    old = LOOPS.replace("NAMES", '["_fsdp_wrapped_module.head", "inp"]')
    new = LOOPS.replace("NAMES", '["head", "inp"]')
    (line,) = found(old, new, tmp_path, version)
    assert (line.line, line.source) == (4, 'if name.startswith("head"):')
    way, name = line.pairs
    assert way.original.startswith("line 7: rest = len(name)")
    assert way.migrated.startswith("line 5: chosen.append(name)")
    assert (name.original, name.migrated) == ("'_fsdp_wrapped_module.head'", "'head'")


def test_programs_that_are_the_same_have_no_line(tmp_path: Path) -> None:
    text = LOOPS.replace("NAMES", '["head", "inp"]')
    moved = "import os\n\n" + text.replace("rate = ", "# Another line.\n\nrate = ")
    assert found(text, moved, tmp_path) == []


ENDED = """\
def batches():
    for n in range(3):
        yield n


limit = LIMIT
for n in batches():
    if n == limit:
        raise ValueError(n)
    twice = n * 2
"""


def test_a_generator_that_a_failure_leaves_goes_no_other_way(tmp_path: Path) -> None:
    old = ENDED.replace("LIMIT", "7")
    (line,) = found(old, ENDED.replace("LIMIT", "1"), tmp_path)
    assert line.source == "limit = LIMIT".replace("LIMIT", "7")


SHARES = """\
import functools, operator

share = functools.partial(operator.getitem, SHARES)
all_reduce = functools.partial(max, LEAST)


def norm():
    total = 0
    for n in range(2):
        total += share(n)
    total = all_reduce(total)
    return total


size = norm()
rate = RATE
"""


@pytest.mark.parametrize(
    ("least", "expected"), [(6, ["rate = 0.1"]), (0, ["total += share(n)"])], ids=["same", "other"]
)
def test_a_share_of_a_sum_that_is_the_same_is_no_difference(
    least: int, expected: list[str], tmp_path: Path
) -> None:
    """FSDP1 gives a rank other parts of the parameters: what it adds up itself differs, and what all ranks do does not."""
    text = SHARES.replace("LEAST", str(least))
    old = text.replace("SHARES", "[1, 2]").replace("RATE", "0.1")
    new = text.replace("SHARES", "[2, 3]").replace("RATE", "0.2")
    assert [line.source for line in found(old, new, tmp_path)] == expected


CHOICE = """\
import functools, operator

double = functools.partial(operator.mul, 2)
limit = 3
if limit:
    if limit < 5:
        norm = double(limit)
    else:
        norm = limit * 2
rate = 0.1
"""


def test_a_block_that_became_shorter_is_no_other_way(tmp_path: Path) -> None:
    """As `if isinstance(model, FSDP)` around two ways to clip, of which one is left."""
    start = CHOICE.partition("    if limit < 5:")[0]
    new = f"{start}    norm = limit * 2\nrate = 0.2\n"
    assert [line.source for line in found(CHOICE, new, tmp_path)] == ["rate = 0.1"]


TWO = """\
import random

class Rates:
    def __init__(self, first):
        self.first = first
        self.words = "plain"

    def halve(self):
        self.first = self.first / 2
        return self.first


def total(sizes):
    count = 0
    for size in sizes:
        count += size
    return count


noise = random.random()
shifted = noise + 1
size = total(SIZES)
rates = Rates(size * 0.5)
half = rates.halve()
word = WORD
text = word + str(half)
longer = [text] * 2
"""


def test_what_comes_from_a_reported_line_is_not_reported(tmp_path: Path) -> None:
    old = TWO.replace("SIZES", "[1, 2]").replace("WORD", '"a"')
    new = TWO.replace("SIZES", "[1, 3]").replace("WORD", '"b"')
    lines = found(old, new, tmp_path)
    # Line 22 gives the first number that differs; the word differs by itself; what is random is neither.
    assert places(lines) == [22, 25]
    assert (
        str(lines[0].pairs[0])
        == "sizes of total: original list of 2 (1, 2), migrated list of 2 (1, 3)"
    )
    assert str(lines[1].pairs[0]) == "word: original 'a', migrated 'b'"


def test_an_argument_is_the_callers(tmp_path: Path) -> None:
    text = "def f(n):\n    m = n + 1\n    return m\n\n\nxs = [1, 2]\nk = f(len(xs[START:]))\n"
    (line,) = found(text.replace("START", "0"), text.replace("START", "1"), tmp_path)
    assert line.line == 7
    assert str(line.pairs[0]) == "n of f: original 2, migrated 1"


def test_what_ran_before_a_failure_is_reported(tmp_path: Path) -> None:
    text = "def f(kinds):\n    kind = kinds.get('b', KIND)\n    return kind.upper()\n\n\nx = f({})\ny = 1\n"
    old, new = text.replace("KIND", "'c'"), text.replace("KIND", "None")
    (line,) = found(old, new, tmp_path)
    assert (line.line, str(line.pairs[0])) == (2, "kind: original 'c', migrated None")


def test_a_failure_is_no_other_way(tmp_path: Path) -> None:
    text = "x = 1\ny = x + 1\nassert y == WANTED\nz = 3\n"
    assert found(text.replace("WANTED", "2"), text.replace("WANTED", "3"), tmp_path) == []


def test_after_the_limit_of_lines_nothing_is_compared(tmp_path: Path) -> None:
    text = "n = 0\nfor i in range(300):\n    n += i\nword = WORD\n"
    old, new = text.replace("WORD", "'a'"), text.replace("WORD", "'b'")
    assert places(found(old, new, tmp_path / "all")) == [4]
    assert found(old, new, tmp_path / "some", lines=50) == []


def test_a_journal_says_that_a_limit_ended_it_and_counts_no_waiting(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("journal", RECORDER / "lines" / "journal.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    journal = module.Journal(str(tmp_path), 3, 0.2)
    for _ in range(2):
        journal.write("line", 1, 1, {})
        time.sleep(0.3)
    (ran,) = traces.read(tmp_path).values()
    assert not ran.cut
    journal.write("line", 1, 1, {})
    (ended,) = traces.read(tmp_path).values()
    assert (ended.cut, ended.limited) == (True, True)


def test_at_most_ten_lines(tmp_path: Path) -> None:
    text = "".join(f"word{n} = str(N) + '{n}'\n" for n in range(30))
    lines = found(text.replace("N)", "1)"), text.replace("N)", "2)"), tmp_path)
    assert places(lines) == [*range(1, MOST + 1)]


def test_a_block_that_was_rewritten_counts_by_what_it_leaves(tmp_path: Path) -> None:
    old = "a = 1\nb = a + 1\nc = b * 2\nd = 'end'\n"
    new = "a = 1\nparts = [a, 1]\nwhole = sum(parts)\nfor _ in range(1):\n    b = whole\nc = b * 2\nd = 'end'\n"
    assert found(old, new, tmp_path / "same") == []
    (line,) = found(old, new.replace("b = whole", "b = 7"), tmp_path / "other")
    assert (line.line, str(line.pairs[0])) == (2, "b: original 2, migrated 7")


def test_other_rounds_over_parameters_are_known(tmp_path: Path) -> None:
    text = "count = 0\nfor p in PARAMETERS:\n    count = count + 0\ntotal = TOTAL\n"
    forms = [
        {"line 2": "~flat parameter (10,)", "rounds": 1},
        {"line 2": "~DTensor (8, 8)", "rounds": 3},
    ]
    programs, runs = [], []
    for name, form in zip(("original", "migrated"), forms, strict=True):
        program = trace("pass\n", tmp_path / name)
        program.script.write_text(text)
        (file,) = program.source.glob("process-*.lines")
        rounds = [f'["line", 1, 2, {{"p": "{form["line 2"]}"}}]\n["line", 1, 3, {{}}]\n']
        file.write_text(
            '["file", 0, "own.py"]\n["call", 1, 0, 0, 1, "<module>", {}]\n["line", 1, 1, {"count": "0"}]\n'
            + "".join(rounds * int(form["rounds"]))
            + '["line", 1, 2, {}]\n["return", 1, 4, {"total": "5"}]\n'
        )
        programs.append(program)
        runs.append(traces.read(program.source))
    assert compare(Mapping(*programs), *runs) == []
    # What the rounds have added up is another number.
    for run, value in zip(runs, ("1", "3"), strict=True):
        run[0].frames[0].rows[-3].values["count"] = value
    (line,) = compare(Mapping(*programs), *runs)
    assert (line.line, str(line.pairs[0])) == (3, "count: original 1, migrated 3")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("1.00001", "1.00002", Grade.SAME),
        ("1.01", "1.02", Grade.OTHER),
        ("3", "4", Grade.OTHER),
        ("nan", "nan", Grade.SAME),
        ("'_fsdp_wrapped_module.a.b'", "'a.b'", Grade.KNOWN),
        ("'a._fsdp_wrapped_module'", "'a'", Grade.KNOWN),
        ("'_fsdp_wrapped_module.a.b'", "'a.c'", Grade.OTHER),
        ("'_fsdp_wrapped_module._flat_param'", "'a.b'", Grade.KNOWN),
        ("~flat parameter (10,)", "~DTensor (8, 8)", Grade.KNOWN),
        ("tensor float32 (8, 8) |3.5|", "~DTensor (8, 8)", Grade.KNOWN),
        ("0.5 float32", "~DTensor ()", Grade.KNOWN),
        ("False bool", "~DTensor ()", Grade.KNOWN),
        ("None", "~DTensor (8, 8)", Grade.KNOWN),
        ("None", "~setting ()", Grade.KNOWN),
        ("~setting ()", "~setting ()", Grade.SAME),
        ("tensor float32 (8, 8) |3.5|", "tensor float32 (8, 8) |3.6|", Grade.OTHER),
        ("tensor float32 (8,) |3.5|", "tensor bfloat16 (8,) |3.5|", Grade.OTHER),
        ("module FSDP(Block)", "module Block", Grade.KNOWN),
        # What is done with another module counts, and is reported with it.
        ("module FSDP(Block)", "module Net", Grade.KNOWN),
        ("list of 2 (~flat parameter (3,), 1)", "list of 2 (~DTensor (1, 3), 1)", Grade.KNOWN),
        ("list of 2 (~flat parameter (3,), 1)", "list of 3 (~DTensor (1, 3), 1)", Grade.OTHER),
        ("5", "~DTensor (8, 8)", Grade.OTHER),
        (
            "dict of 1 (0: {'exp_avg': tensor float32 (9,) |1|})",
            "dict of 2 (0: {'exp_avg': ~DTensor (3,)})",
            Grade.KNOWN,
        ),
        (
            "dict of 1 (0: {'rate': tensor float32 (9,) |1|})",
            "dict of 2 (0: {'rate': ~DTensor (3,)})",
            Grade.OTHER,
        ),
    ],
)
def test_what_two_forms_mean(old: str, new: str, expected: Grade) -> None:
    assert grade(old, new, 1e-4) == expected


def test_numbers_that_are_no_counts() -> None:
    assert only_numbers("tensor float32 (8,) |3.5|", "tensor float32 (8,) |3.6|")
    assert not only_numbers("list of 2 (1, 2)", "list of 3 (1, 2, 3)")
    assert not only_numbers("'a'", "'b'")


def test_long_values_are_shown_where_they_differ() -> None:
    one, other = ("word " * 50 + end for end in ("one", "other"))
    old, new = shortened(one, other)
    assert (old[0], new[0]) == ("…", "…")
    assert old.endswith("one")
    assert new.endswith("other")
    assert max(len(old), len(new)) < 100


def test_a_policy_is_a_setting_also_where_fsdp1_took_none() -> None:
    torch = pytest.importorskip("torch")
    from fsdp_migrate.verify.recorder.imports import Copies
    from fsdp_migrate.verify.recorder.lines.forms import Forms

    fsdp = pytest.importorskip("torch.distributed.fsdp")
    forms = Forms(Copies([]))
    settings = fsdp.MixedPrecision(torch.bfloat16), fsdp.MixedPrecisionPolicy(torch.bfloat16)
    assert {forms.of(setting) for setting in settings} == {"~setting ()"}
    assert forms.of(torch.optim.lr_scheduler.StepLR) is None
