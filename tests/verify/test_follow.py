"""The tracer of lines, under every Python that is here: which rows it writes of a program that needs no torch."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.vendor import runtime_folder

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

START = """\
import importlib, importlib.util, os, sys
record, copy, folder = sys.argv[1:]
spec = importlib.util.spec_from_file_location(
    "_record", os.path.join(record, "__init__.py"), submodule_search_locations=[record]
)
sys.modules["_record"] = importlib.util.module_from_spec(spec)
load = lambda name: importlib.import_module(f"_record.{name}")
copies = load("imports").Copies([["/nowhere", copy]])
lines = load("lines")
journal = load("lines.journal").Journal(folder, 1000, 60.0)
follower = load("lines.follow").Follower(copies, journal, load("lines.forms").Forms(copies))
kind = "monitoring" if sys.version_info >= (3, 12) else "tracing"
path = os.path.join(copy, "own.py")
code = compile(open(path).read(), path, "exec")
space = {"__name__": "own", "__file__": path}
import types
module = types.ModuleType("own")
module.__file__ = path
sys.modules["own"] = module
stop = load(f"lines.{kind}").follow(follower)
exec(code, vars(module))
stop()
"""


def interpreter(version: str) -> str | None:
    """The path of a Python, torch or not."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    folders = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin"))
    return str(folders[-1] / "python") if folders else shutil.which(f"python{version}")


def rows(version: str, tmp_path: Path) -> list[tuple[str, int, dict[str, str]]]:
    """The function, the line and what changed, of every row."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "own.py").write_text(PROGRAM)
    command = [python, "-c", START, str(runtime_folder() / "record"), str(copy), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
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
