"""Small programs in which each line that breaks or changes bears the code of the rule that has to find it.

A shape is a file in `shapes/`, or a folder of files that belong together. A line ends with `# FSDP508`, or with several codes;
a first line `# forms: auto bridge` says in which forms it is analysed, and it is `auto` alone without one. The codes are taken
off before the tool sees the program. Of all other lines nothing may be left to the user.
"""

import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import pytest

from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse
from fsdp_migrate.findings import Action
from fsdp_migrate.settings import Options

SHAPES = Path(__file__).parent / "shapes"
_MARK = re.compile(r"[ \t]*# (FSDP\d{3}(?: FSDP\d{3})*)$", re.MULTILINE)
_FORMS = re.compile(r"# forms: (.+)\n")


class Line(NamedTuple):
    """A line of a shape, and a rule that finds it."""

    file: str
    line: int
    code: str


class Shape(NamedTuple):
    """The text of each file without the marks, the lines that were marked, and the forms."""

    files: dict[str, str]
    marked: frozenset[Line]
    forms: tuple[str, ...]


def read(path: Path) -> Shape:
    """Reads a shape from a file or a folder."""
    paths = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    files, marked, forms = {}, set(), ("auto",)
    for each in paths:
        name = each.name if each == path else each.relative_to(path).as_posix()
        text = each.read_text("utf-8")
        if asked := _FORMS.match(text):
            forms = tuple(asked[1].split())
        for number, line in enumerate(text.splitlines(), 1):
            if mark := _MARK.search(line):
                marked |= {Line(name, number, code) for code in mark[1].split()}
        files[name] = _MARK.sub("", text)
    return Shape(files, frozenset(marked), forms)


def look(
    shape: Shape, folder: Path, form: str, ignore: Collection[str] = ()
) -> tuple[set[Line], set[Line]]:
    """The marked lines that no finding of their code stands on, and the other lines that are left to the user."""
    for name, text in shape.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    report = analyse(discover([folder]), Options(form=form, ignore=frozenset(ignore)))
    assert not report.errors, report.errors
    found, by_hand = set(), set()
    for finding in report.findings:
        name = (Path.cwd() / finding.path).relative_to(folder).as_posix()
        found.add(Line(name, finding.line, finding.code))
        if finding.action is Action.MANUAL:
            by_hand.add(Line(name, finding.line, finding.code))
    places = {each[:2] for each in shape.marked}
    return set(shape.marked - found), {each for each in by_hand if each[:2] not in places}


NAMES = sorted(path.name for path in SHAPES.iterdir() if not path.name.startswith("_"))
RUNS = [(name, form) for name in NAMES for form in read(SHAPES / name).forms]


@pytest.mark.parametrize(("name", "form"), RUNS)
def test_what_breaks_is_found_and_nothing_else_is_left_to_the_user(
    name: str, form: str, tmp_path: Path
) -> None:
    missed, alarms = look(read(SHAPES / name), tmp_path, form)
    assert {"missed": missed, "false alarms": alarms} == {"missed": set(), "false alarms": set()}


def test_a_rule_that_is_switched_off_is_missed(tmp_path: Path) -> None:
    unnoticed = set()
    for number, (name, line) in enumerate(
        (n, each) for n in NAMES for each in read(SHAPES / n).marked
    ):
        shape = read(SHAPES / name)
        missed, _ = look(shape, tmp_path / str(number), shape.forms[0], {line.code})
        if line not in missed:
            unnoticed.add((name, line))
    assert unnoticed == set()


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("fsdp2_alone.py", "fsdp2_alone.py"),
        ("fsdp2_beside", "test_new.py"),
        ("accelerate_settings", "reads.py"),
    ],
)
def test_a_file_that_uses_fsdp2_or_reads_settings_is_not_rewritten(
    name: str, file: str, tmp_path: Path
) -> None:
    for form in ("auto", "bridge", "torch"):
        look(read(SHAPES / name), tmp_path, form)
        report = analyse(discover([tmp_path]), Options(form=form))
        assert file not in [change.path.name for change in report.changes]
