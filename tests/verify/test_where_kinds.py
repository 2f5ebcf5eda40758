"""What must differ between FSDP1 and FSDP2, or between two runs, is no line: each kind once, without torch."""

from pathlib import Path

import pytest

from fsdp_migrate.verify.where import traces
from fsdp_migrate.verify.where.forms import other_counts, same_but_for_copies
from fsdp_migrate.verify.where.lines import Line
from fsdp_migrate.verify.where.mapping import Mapping
from fsdp_migrate.verify.where.rows import units, update
from fsdp_migrate.verify.where.runs import compare
from fsdp_migrate.verify.where.traces import Frame, Row
from fsdp_migrate.verify.where.weights import add_up

from .test_where_search import found, places
from .traced import trace

IN_A_BLOCK = """\
class Quiet:
    def __enter__(self): pass
    def __exit__(self, *a): pass


for n in range(3):
    with Quiet():
        m = n * 2
        k = m + 1
done = k
"""

WITHOUT_BLOCK = """\
class Quiet:
    def __enter__(self): pass
    def __exit__(self, *a): pass


for n in range(3):
    print('set', end='')
    m = n * 2
    k = m + 1
done = k
"""

RANDOM = """\
import random
home = [random.random()]
home.sort()


class Seed:
    def set(self, n):
        self.n = n


seed = Seed()
seed.set(len(home) * RATE)
"""

GUARD = """\
def count(module):
    if not isinstance(module, Wrapper):
        return
    total.append(1)


model.apply(count)
"""

WALK = """\
def walk(module):
    if not isinstance(module, Wrapper):
        seen.append(1)
    for child in module.children():
        walk(child)


walk(model)
"""


SKIPS = """\
for name, p in model.named_parameters():
    if p.grad is None:
        continue
    name = name.strip()
    assert name
    total = total + 1
rate = 1 / total
"""
END = '["return", 1, 7, {"rate": "0.5"}]'


def written(text: str, rows: tuple[list[str], list[str]], folder: Path) -> list[Line]:
    """The lines that differ of a program, of whose runs each has written these rows."""
    programs, runs = [], []
    for name, lines in zip(("original", "migrated"), rows, strict=True):
        program = trace("pass\n", folder / name)
        program.script.write_text(text)
        (file,) = program.source.glob("process-*.lines")
        file.write_text("\n".join(['["file", 0, "own.py"]', *lines, ""]))
        programs.append(program)
        runs.append(traces.read(program.source))
    return compare(Mapping(*programs), *runs)


def test_where_the_code_is_another_the_next_line_is_no_difference(tmp_path: Path) -> None:
    assert found(IN_A_BLOCK, WITHOUT_BLOCK, tmp_path / "same") == []
    # A line that chooses by a value is one all the same.
    text = "n = N\nif n > 1:\n    WORD\nelse:\n    b = 2\nend = 3\n"
    one = text.replace("N", "2", 1).replace("WORD", "a = 1")
    other = text.replace("N", "1", 1).replace("WORD", "a = 10 - 9")
    assert places(found(one, other, tmp_path / "other")) == [1]


def test_rounds_that_a_rank_without_a_part_leaves_early(tmp_path: Path) -> None:
    """The rounds behind belong together all the same, and a loss of one of them is named."""
    rows: tuple[list[str], list[str]] = [], []
    for lines in rows:
        lines.append('["call", 1, 0, 0, 1, "<module>", {"total": "1"}]')
        for name in "abcde":
            is_left = lines is rows[0] and name in "ac"
            part = f"~part of a flat parameter ({0 if is_left else 4},)"
            form = part if lines is rows[0] else "~DTensor (4,)"
            lines.append(f'["line", 1, 1, {{"name": "\'{name}\'", "p": "{form}"}}]')
            lines += (f'["line", 1, {n}, {{}}]' for n in ((2, 3) if is_left else (2, 4, 5, 6)))
        lines.append('["line", 1, 1, {}]')
    assert written(SKIPS, ([*rows[0], END], [*rows[1], END]), tmp_path / "same") == []
    other = END.replace("0.5", "0.7")
    (line,) = written(SKIPS, ([*rows[0], END], [*rows[1], other]), tmp_path / "other")
    assert (line.line, str(line.pairs[0])) == (7, "rate: original 0.5, migrated 0.7")


def test_what_is_random_taints_nothing(tmp_path: Path) -> None:
    """A temporary folder that a call acts on must not hide what differs behind it."""
    lines = found(RANDOM.replace("RATE", "0.5"), RANDOM.replace("RATE", "0.25"), tmp_path)
    assert [line.line for line in lines] == [12]
    assert str(lines[0].pairs[0]) == "n of set: original 0.5, migrated 0.25"


def test_a_value_that_is_yielded_is_not_the_end() -> None:
    rows = [
        Row("call", 1, {}),
        Row("return", 1, {"return": "0"}),
        Row("return", 1, {"return": "1"}),
    ]
    frame = Frame(1, "own.py", 1, "<genexpr>", [*rows, Row("return", 1, {"return": "None"})])
    ends = [unit.key[1] for unit in units(frame, {1: 1}, set())]
    assert ends == [False, False, False, True]


@pytest.mark.parametrize("counts", [(1, 4), (2, 3)])
def test_as_many_values_as_there_are_parameters(counts: tuple[int, int], tmp_path: Path) -> None:
    """`[p.grad.max() for p in model.parameters()]`: the list is another one, and what comes of it counts."""
    text = "norms = [p.grad.max() for p in parameters]\nlargest = max(norms)\n"
    forms = "~part of a flat parameter (552,)", "~DTensor (16, 32)"
    rows = []
    for number, form, largest in zip(counts, forms, ("0.5", "0.5"), strict=True):
        inner = [f'["line", 2, 1, {{"p": "{form}"}}]'] * number
        values = f'"list of {number} (0.5 float32)"'
        rows.append(
            [
                '["call", 1, 0, 0, 1, "<module>", {}]',
                '["call", 2, 1, 0, 1, "<listcomp>", {}]',
                *inner,
                f'["return", 2, 1, {{"return": {values}}}]',
                f'["line", 1, 1, {{"norms": {values}}}]',
                f'["line", 1, 2, {{"largest": "{largest}"}}]',
                '["return", 1, 2, {}]',
            ]
        )
    assert written(text, (rows[0], rows[1]), tmp_path / "same") == []
    rows[1][-2] = rows[1][-2].replace("0.5", "0.75")
    assert places(written(text, (rows[0], rows[1]), tmp_path / "other")) == [2]


def calls(
    *given: tuple[str, tuple[int, ...]], first: str = '["call", 1, 0, 0, 1, "<module>", {}]'
) -> list[str]:
    """A module's line that calls a function for modules, each of which runs some lines."""
    rows = [first]
    for number, (module, lines) in enumerate(given, 2):
        rows.append(f'["call", {number}, 1, 0, 1, "count", {{"module": "module {module}"}}]')
        rows += [f'["line", {number}, {line}, {{}}]' for line in lines[:-1]]
        rows.append(f'["return", {number}, {lines[-1]}, {{}}]')
    return [*rows, '["line", 1, 7, {}]', '["return", 1, 7, {}]']


def test_of_a_wrapper_and_its_module_the_call_is_kept_that_did_the_same(tmp_path: Path) -> None:
    both = calls(("Block", (2, 3)), ("FSDP(Block)", (2, 4)))
    assert written(GUARD, (both, calls(("Block", (2, 4)))), tmp_path / "wrapper") == []
    assert written(GUARD, (both, calls(("Block", (2, 3)))), tmp_path / "module") == []


def test_a_wrapper_s_call_that_calls_for_its_module(tmp_path: Path) -> None:
    begin, end = (
        '["call", 1, 0, 0, 1, "<module>", {}]',
        ['["line", 1, 8, {}]', '["return", 1, 8, {}]'],
    )
    original = [
        begin,
        '["call", 2, 1, 0, 1, "walk", {"module": "module FSDP(Net)"}]',
        '["line", 2, 2, {}]',
        '["line", 2, 4, {"child": "module Net"}]',
        '["call", 3, 2, 0, 1, "walk", {"module": "module Net"}]',
        '["line", 3, 2, {}]',
        '["line", 3, 3, {}]',
        '["return", 3, 4, {}]',
        '["line", 2, 5, {}]',
        '["return", 2, 4, {}]',
        *end,
    ]
    migrated = [
        begin,
        '["call", 2, 1, 0, 1, "walk", {"module": "module Net"}]',
        '["line", 2, 2, {}]',
        '["line", 2, 3, {}]',
        '["return", 2, 4, {}]',
        *end,
    ]
    assert written(WALK, (original, migrated), tmp_path / "same") == []
    # With another argument it is another call, and the way of the wrapper's is compared.
    depth = ('"module Net"}', '"module Net", "depth": "1"}')
    original[4] = original[4].replace(*depth)
    migrated[1] = migrated[1].replace(*depth).replace('"1"', '"0"')
    assert places(written(WALK, (original, migrated), tmp_path / "other")) == [2]


def test_what_a_wrapper_s_round_has_set_holds_in_its_module_s(tmp_path: Path) -> None:
    """A row has only what changed: the second round of two says nothing of what the first one has set."""
    text = "for module in modules:\n    own = list(module.parameters())\n    rate = 1\n"
    begin, end = '["call", 1, 0, 0, 1, "<module>", {}]', '["return", 1, 1, {}]'

    def rounds(*given: tuple[str, str]) -> list[str]:
        rows = [begin]
        for module, own in given:
            values = f'{{"own": "{own}"}}' if own else "{}"
            rows.append(f'["line", 1, 1, {{"module": "module {module}"}}]')
            rows += [f'["line", 1, 2, {values}]', '["line", 1, 3, {}]']
        return [*rows, end]

    norm = ("Norm", "list of parameters norm.weight")
    original = rounds(norm, ("FSDP(Block)", "list of 0 ()"), ("Block", ""), norm)
    migrated = rounds(norm, ("Block", "list of 0 ()"), norm)
    assert written(text, (original, migrated), tmp_path) == []


def test_the_values_of_a_generator_count_by_what_comes_of_them(tmp_path: Path) -> None:
    text = "sizes = SIZES\nfound = sum(n for n in sizes) > LIMIT\n"
    old = text.replace("SIZES", "[1, 2]").replace("LIMIT", "0")
    new = (
        text.replace("SIZES", "sorted([2, 1])").replace("sum(n", "sum(n * 5").replace("LIMIT", "0")
    )
    assert found(old, new, tmp_path / "same") == []
    lines = found(old, new.replace("> 0", "> 90"), tmp_path / "other")
    assert [str(line.pairs[0]) for line in lines] == ["found: original True, migrated False"]


def test_a_generator_that_drops_the_wrapper_from_a_name(tmp_path: Path) -> None:
    text = "source = NAME\nname = '.'.join(part for part in source.split('.') if part[0] != '_')\nend = len(name)\n"
    old = text.replace("NAME", "'_fsdp_wrapped_module.a.b'")
    assert found(old, text.replace("NAME", "'a.b'"), tmp_path) == []


CHECKED = """\
for p in model.parameters():
    if p.is_meta:
        raise ValueError
"""


def test_more_rounds_over_parameters_than_flat_ones_had(tmp_path: Path) -> None:
    rows: list[list[str]] = []
    for form, count in (("~flat parameter (10,)", 1), ("~DTensor (4,)", 4)):
        lines = ['["call", 1, 0, 0, 1, "<module>", {}]']
        for _ in range(count):
            lines += [f'["line", 1, 1, {{"p": "{form}"}}]', '["line", 1, 2, {}]']
        rows.append([*lines, '["return", 1, 1, {}]'])
    assert written(CHECKED, (rows[0], rows[1]), tmp_path) == []


def test_another_object_has_no_parts_of_the_one_before() -> None:
    values = {"model": "module Net", "model.training": "True"}
    update(values, {"model": "module FSDP(Net)"})
    assert values == {"model": "module FSDP(Net)"}


SETTINGS = """\
class Settings:
    def __init__(self, weights):
        self.weights = weights


settings = Settings("WEIGHTS")
print("trains")
"""


def test_settings_may_be_called_weights(tmp_path: Path) -> None:
    programs = [
        trace(SETTINGS.replace("WEIGHTS", weights), tmp_path / weights)
        for weights in ("7,5", "7,25")
    ]
    one, other = (traces.read(program.source) for program in programs)
    for each in (one, other):
        add_up(each)
    (line,) = compare(Mapping(*programs), one, other, frozenset())
    assert str(line.pairs[0]) == "weights of __init__: original '7,5', migrated '7,25'"


def test_copies_of_weights_in_low_precision() -> None:
    old = "a.bias 0.033975, a.weight 1.8359"
    assert same_but_for_copies(old, "a.bias 0.024, a.weight 1.2982")
    assert not same_but_for_copies(old, "a.bias 0.0341, a.weight 1.8430"), "once each: they differ"
    assert same_but_for_copies(old, "a.bias 0.024, a.weight 1.8359"), "of one unit"
    assert not same_but_for_copies(old, "a.bias 0.03, a.weight 1.8359"), "no whole number of copies"
    assert not same_but_for_copies(old, "a.bias 0.024, a.weight 1.0")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("list of 2 (1, 2)", "list of 12 (1, 2, …)", True),
        ("list of 2 (1, 2)", "list of 2 (1, 3)", False),
        ("list of 2 (1, 2)", "tuple of 3 (1, 2, 3)", False),
        ("2", "12", False),
    ],
)
def test_other_counts(old: str, new: str, expected: bool) -> None:
    assert other_counts(old, new) == expected
