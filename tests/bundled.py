"""The bundled programs, and how each is run."""

import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIXTURES = Path(__file__).parent.parent / "fixtures"
CASES = {
    file.parent.name: tomllib.loads(file.read_text("utf-8"))
    for file in sorted(FIXTURES.glob("*/case.toml"))
}
# Those that say `thorough` run under `make thorough`: they show again what another run and tests/behaviour show.
RUNS = [
    pytest.param(
        case,
        {**settings, **run},
        id=" ".join([case, *run.get("arguments", ())]),
        marks=[pytest.mark.thorough] if run.get("thorough") else [],
    )
    for case, settings in CASES.items()
    for run in settings.get("runs", [{}])
]


def python_files(folder: Path) -> dict[str, Path]:
    """The Python files below a folder, by their names relative to it."""
    return {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*.py"))}


def program_texts(root: Path) -> tuple[str, ...]:
    """The files of a program: two forms of it that are written alike need not both be trained."""
    files = sorted(root.rglob("*.py"))
    assert files
    return tuple(f"{file.relative_to(root)}\n{file.read_text('utf-8')}" for file in files)
