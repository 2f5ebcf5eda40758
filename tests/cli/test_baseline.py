"""A baseline: `check` passes over what is in it, and speaks of what is new."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
SETTING = '[tool.fsdp-migrate]\nbaseline = "fsdp1.json"\n'


@pytest.fixture
def baseline(real_cli: Cli, folder: Path) -> Path:
    """That of a project with two files."""
    (folder / "a.py").write_text(IMPORT + "model = FSDP(model)\nother = FSDP(model)\n")
    (folder / "b.py").write_text(IMPORT)
    written = real_cli("check", ".", "--write-baseline", "fsdp1.json")
    assert (written.code, written.text) == (0, "4 findings are in the baseline fsdp1.json.\n")
    (folder / "pyproject.toml").write_text(SETTING)
    return folder / "fsdp1.json"


def test_known_findings_are_passed_over(
    real_cli: Cli, baseline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = sum(
        sum(each.values()) for each in json.loads(baseline.read_text())["findings"].values()
    )
    checked = real_cli("check", ".")
    assert (checked.code, checked.err) == (0, "")
    assert checked.text.startswith("No new FSDP1 of torch in ")
    assert checked.text.endswith(f" {known} findings more in the baseline.\n")

    file = baseline.parent / "a.py"
    file.write_text("# a line more\n\n" + file.read_text())
    assert real_cli("check", "a.py").code == 0
    inner = baseline.parent / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    assert real_cli("check", "..").code == 0


def test_what_is_new_is_found(real_cli: Cli, baseline: Path) -> None:
    file = baseline.parent / "a.py"
    file.write_text(file.read_text() + "third = FSDP(model)\n")
    checked = real_cli("check", ".")
    assert checked.code == 1
    assert "\na.py:4:" in checked.text
    assert "1 use of FSDP1 in 1 file" in checked.text
    (baseline.parent / "c.py").write_text(IMPORT)
    assert "c.py:1:1 FSDP001" in real_cli("check", ".", "-v").text
    assert real_cli("check", ".", "--write-baseline", "fsdp1.json").code == 0
    assert real_cli("check", ".").code == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "is no baseline"),
        ("{", "is no baseline"),
        ('{"version": 2, "findings": {}}', "is of version 2"),
        (None, "cannot be read"),
    ],
)
def test_others_are_refused(real_cli: Cli, baseline: Path, text: str | None, says: str) -> None:
    baseline.unlink() if text is None else baseline.write_text(text)
    checked = real_cli("check", ".")
    assert checked.code == 2
    assert "fsdp1.json" in checked.err
    assert says in checked.err
    assert real_cli("a.py", "--diff").code == 0, "only check asks for it"


def test_a_migration_leaves_it_alone(real_cli: Cli, baseline: Path) -> None:
    before = baseline.read_bytes()
    assert real_cli(".").code == 0
    assert baseline.read_bytes() == before
