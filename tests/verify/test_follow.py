"""The tracer of lines, under every Python that is here: which rows it writes of a program that needs no torch."""

import json
from pathlib import Path

import pytest

from .traced import trace

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")

PROGRAM = """\
def double(n):
    twice = n * 2
    return twice


def names(xs):
    short = [x.upper() for x in xs if x]
    longest = max(len(x) for x in xs)
    for x in xs:
        if x == "bb":
            break
    return short, longest


class Rate:
    def __init__(self):
        self.value = 1.5

    def halve(self):
        self.value /= 2


rate = Rate()
rate.halve()
four = double(2)
found = names(["a", "bb", "c"])
try:
    found.missing
except AttributeError:
    four = 5
"""


def rows(version: str, tmp_path: Path) -> list[tuple[str, int, dict[str, str]]]:
    """The function, the line and what changed, of every row."""
    trace(PROGRAM, tmp_path, version)
    functions = {}
    found = []
    (file,) = tmp_path.glob("process-*.lines")
    for kind, *entry in map(json.loads, file.read_text().splitlines()):
        if kind == "call":
            functions[entry[0]] = entry[4]
            found.append((entry[4], entry[3], entry[5]))
        elif kind in ("line", "return", "raise"):
            found.append((functions[entry[0]], entry[1], entry[2]))
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_every_line_has_what_it_changed(version: str, tmp_path: Path) -> None:
    found = rows(version, tmp_path)
    assert ("double", 1, {"n": "2"}) in found
    assert ("double", 2, {"twice": "4"}) in found
    assert ("double", 3, {"return": "4"}) in found
    assert ("halve", 20, {"self.value": "0.75", "return": "None"}) in found
    assert ("<module>", 24, {"rate.value": "0.75"}) in found
    assert ("<module>", 25, {"four": "4"}) in found
    assert [line for _, line, changed in found if changed.get("four") == "5"] == [30]
    # Each round of a loop, and the way that the program took.
    loop = [line for function, line, _ in found if function == "names" and line in (9, 10, 11)]
    assert loop == [9, 10, 9, 10, 11]


@pytest.mark.parametrize("version", VERSIONS)
def test_rounds_of_comprehensions_are_rows(version: str, tmp_path: Path) -> None:
    found = rows(version, tmp_path)
    values = [changed.get("x") for _, line, changed in found if line == 7 and "x" in changed]
    assert values == ["'a'", "'bb'", "'c'"]
    lengths = [changed["x"] for _, line, changed in found if line == 8 and "x" in changed]
    assert lengths == ["'a'", "'bb'", "'c'"]


ORDERS = """\
names = [f"layer {n:02}" for n in range(20)]
state = {name: len(name) for name in NAMES}
group = {"lr": 0.1, "params": NAMES}
"""


def test_the_order_of_names_does_not_matter(tmp_path: Path) -> None:
    forms = []
    for order in ("names", "names[::-1]"):
        folder = tmp_path / order
        trace(ORDERS.replace("NAMES", order), folder)
        (file,) = folder.glob("process-*.lines")
        entries = map(json.loads, file.read_text().splitlines())
        changed = [entry[3] for entry in entries if entry[0] in ("line", "return")]
        forms.append([form for form in changed if {"state", "group"} & form.keys()])
    assert forms[0] == forms[1]
    assert len(forms[0]) == 2
