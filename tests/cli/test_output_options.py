"""How much is printed: `--quiet`, `--verbose`, `--statistics`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

PROGRAM = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
model = FSDP(model)
other = FSDP(other)
model.register_comm_hook(state, hook)
"""


@pytest.fixture(autouse=True)
def program(folder: Path) -> Path:
    file = folder / "a.py"
    file.write_text(PROGRAM)
    return file


def codes(text: str) -> list[str]:
    """The rules of the lines that are findings."""
    return [line.split()[1] for line in text.splitlines() if line.startswith("a.py:")]


def test_quiet_prints_findings_alone(real_cli: Cli) -> None:
    checked = real_cli("check", "a.py", "-q")
    assert (checked.code, checked.err) == (1, "")
    assert codes(checked.text) == ["FSDP002", "FSDP002", "FSDP361"]
    assert checked.text.count("\n") == 3
    written = real_cli("a.py", "--quiet")
    assert (written.code, written.err) == (0, "")
    assert codes(written.text) == ["FSDP361"]
    assert written.text.count("\n") == 1


def test_quiet_keeps_errors(real_cli: Cli, program: Path) -> None:
    program.write_text("FSDP(\nif:\n")
    result = real_cli("check", "a.py", "-q")
    assert (result.code, result.text) == (2, "")
    assert result.err.startswith("error: a.py:")


def test_verbose_prints_every_finding_and_what_was_read(real_cli: Cli, folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.fsdp-migrate]\n")
    (folder / "b.py").write_text("print(1)\n")
    result = real_cli(".", "-v")
    assert codes(result.text) == ["FSDP001", "FSDP002", "FSDP002", "FSDP361"]
    settings, read = result.err.splitlines()
    assert settings == f"settings: {folder / 'pyproject.toml'}"
    assert read.startswith("read 2 files in ")
    assert read.endswith(" s: 1 of them may use FSDP1")
    (folder / "pyproject.toml").unlink()
    assert "settings: none" in real_cli("check", ".", "-v").err


def test_the_command_line_wins_over_the_opposite_in_the_project(
    real_cli: Cli, folder: Path
) -> None:
    (folder / "pyproject.toml").write_text("[tool.fsdp-migrate]\nquiet = true\n")
    assert real_cli("check", ".", "-v").err.startswith("settings: ")
    (folder / "pyproject.toml").write_text("[tool.fsdp-migrate]\nverbose = true\n")
    assert real_cli("check", ".", "-q").err == ""


def test_statistics_count_by_rule(real_cli: Cli) -> None:
    result = real_cli("check", "a.py", "--statistics", "-q")
    assert result.code == 1
    assert result.text.splitlines() == [
        "2  FSDP002  fsdp1-constructor  2 rewritten",
        "1  FSDP001  fsdp1-import       1 rewritten",
        "1  FSDP361  comm-hook          1 needs you",
    ]
    assert "4 uses of FSDP1 in 1 file" in real_cli("check", "a.py", "--statistics").text


def test_statistics_are_words(real_cli: Cli) -> None:
    result = real_cli("check", "a.py", "--statistics", "--format", "json")
    assert result.code == 2
    assert "--statistics counts in words" in result.err
    (Path("a.py")).write_text("print(1)\n")
    assert real_cli("check", "a.py", "--statistics", "-q").text == ""
