"""Programs without torch under the tracer of lines, by any Python that is here."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.verify.folders import Program
from fsdp_migrate.verify.launch import RECORDER

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"

START = """\
import importlib, importlib.util, os, sys, types
record, copy, folder, count = sys.argv[1:]
spec = importlib.util.spec_from_file_location(
    "_record", os.path.join(record, "__init__.py"), submodule_search_locations=[record]
)
sys.modules["_record"] = importlib.util.module_from_spec(spec)
load = lambda name: importlib.import_module(f"_record.{name}")
copies = load("imports").Copies([["/nowhere", copy]])
journal = load("lines.journal").Journal(folder, int(count), 60.0)
follower = load("lines.follow").Follower(copies, journal, load("lines.forms").Forms(copies))
kind = "monitoring" if sys.version_info >= (3, 12) else "tracing"
path = os.path.join(copy, "own.py")
module = types.ModuleType("own")
module.__file__ = path
sys.modules["own"] = module
code = compile(open(path).read(), path, "exec")
journal.stop = load(f"lines.{kind}").follow(follower)
try:
    exec(code, vars(module))
finally:
    journal.stop()
"""


def trace(text: str, folder: Path, version: str = HERE, lines: int = 10_000) -> Program:
    """Run a program; its journal is in `folder`, its copy in the folder below it. Skips where there is no such Python."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    copy = folder / "copy"
    copy.mkdir(parents=True)
    (copy / "own.py").write_text(text)
    record = str(RECORDER)
    command = [python, "-c", START, record, str(copy), str(folder), str(lines)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "_record" not in done.stderr, done.stderr
    return Program(folder.name, copy, copy / "own.py", folder)


def interpreter(version: str) -> str | None:
    """The path of a Python, torch or not."""
    if version == HERE:
        return sys.executable
    folders = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin"))
    return str(folders[-1] / "python") if folders else shutil.which(f"python{version}")
