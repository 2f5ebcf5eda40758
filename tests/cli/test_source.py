"""Bytes and text of a file, without loss, and one clear line where there is no text."""

import codecs
import warnings
from pathlib import Path

import pytest

from fsdp_migrate.findings import Problem
from fsdp_migrate.source import Source, parse_problem, read_source, shown_path, source_from_bytes

BOM = codecs.BOM_UTF8


def source(data: bytes) -> Source:
    made = source_from_bytes(Path("x.py"), "x.py", data)
    assert isinstance(made, Source), made
    return made


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x = 1\n",
        b"x = 1",
        b"x = 1\r\ny = 2\r\n",
        b"x = 1\r\ny = 2\nz = 3\r",
        b"x = 1\ry = 2\r",
        b"\x0cx = 1\n\tpass\n",
        BOM + b"x = 1\r\n",
        BOM + b"# coding: utf-8\nx = 1\n",
        "# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"),
        "#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\r\nx = '€'\r\n".encode("cp1252"),
        "# coding: shift_jis\nx = '日本'\n".encode("shift_jis"),
        "x = '日本 \u2028 \U0001f600'\n".encode(),
    ],
)
def test_round_trip_keeps_every_byte(data: bytes) -> None:
    made = source(data)
    assert made.encode(made.text) == data
    assert not made.text.startswith("\ufeff")


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"x = 1\ny = '\xe9'\n", 2, "cannot be decoded: "),
        (b"x = 1\n\n\ny = '\xe9'\n", 4, "cannot be decoded: 'utf-8' codec can't decode byte 0xe9"),
        (b"x = 1\ny = '\0'\n", 2, "NUL byte"),
        (b"# coding: nonsense\n", 1, "cannot be decoded: "),
        (b"# coding: rot13\nk = 1\n", 1, "cannot be decoded"),
        (b"# coding: ascii\nx = '\xe9'\n", 2, "cannot be decoded: 'ascii' codec"),
        (BOM + b"# coding: latin-1\n", 1, "cannot be decoded: "),
        ("x = 'é'\n".encode("utf-16"), 1, "NUL byte"),
    ],
)
def test_no_text(data: bytes, line: int, words: str) -> None:
    problem = source_from_bytes(Path("x.py"), "x.py", data)
    assert isinstance(problem, Problem)
    assert (problem.path, problem.line) == ("x.py", line)
    assert words in problem.message
    assert "\n" not in problem.message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = 1\nif:\n", 2),
        ("print 'python 2'\n", 1),
        ("def f():\npass\n", 2),
        ("x = '''\n", 1),
        ("(" * 300 + ")" * 300, 1),
        ("x = " + "-" * 100_000 + "1\n", 0),
        ("%matplotlib inline\n", 1),
    ],
)
def test_no_tree(text: str, line: int) -> None:
    problem = parse_problem(source(text.encode()))
    assert problem is not None
    assert problem.message.startswith("does not parse: ")
    assert "\n" not in problem.message
    assert line in (0, problem.line)


def test_parsing_is_silent_about_the_users_strings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse_problem(source(b"x = '\\d'\nassert (x, 'y')\n")) is None


def test_reading(folder: Path) -> None:
    (folder / "a.py").write_bytes(b"x = 1\r\n")
    (folder / "folder.py").mkdir()
    made = read_source(folder / "a.py")
    assert isinstance(made, Source)
    assert (made.shown, made.text) == ("a.py", "x = 1\r\n")
    for name, words in (("folder.py", "is a folder"), ("none.py", "cannot be read: No such file")):
        problem = read_source(folder / name)
        assert isinstance(problem, Problem)
        assert problem.path == name
        assert problem.message.startswith(words)


def test_shown_path(folder: Path) -> None:
    assert shown_path(folder / "a" / "b.py") == "a/b.py"
    assert shown_path(Path("./a/../b.py")) == "b.py"
    assert shown_path(folder.parent / "c.py") == (folder.parent / "c.py").as_posix()
