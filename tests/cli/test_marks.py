"""Findings that a later run could not make again are marked by comments until somebody removes them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, loader):
    model = FSDP(net)
    model.register_comm_hook(state, hook)
    for batch in loader:
        if batch is not None:
            model(batch).sum().backward()
        torch.nn.utils.clip_grad_norm_(
            model.parameters(),
            1.0,
        )
"""
COMMENT = "# fsdp-migrate: review[FSDP302]"


def codes(text: str) -> list[str]:
    """The rules of the lines that are findings."""
    return [line.split()[1] for line in text.splitlines() if " FSDP" in line and "a.py:" in line]


def test_what_would_be_lost_stays_until_it_is_signed_off(real_cli: Cli, folder: Path) -> None:
    file = folder / "a.py"
    file.write_text(PROGRAM)
    seen = codes(real_cli("check", "a.py").text)
    assert {"FSDP302", "FSDP361"} <= set(seen)
    assert "--mark" in real_cli("check", "a.py").text
    result = real_cli("a.py", "--mark")
    assert result.code == 0
    assert "1 finding marked by a comment: remove it when done." in result.text
    lines = file.read_text().splitlines()
    assert lines.count(f"        {COMMENT}") == 1, "above the statement, not in the call"
    assert lines[lines.index(f"        {COMMENT}") + 1].startswith("        torch.nn.utils.clip")
    assert "FSDP361" not in file.read_text(), "is found again without a comment"
    checked = real_cli("check", "a.py")
    assert checked.code == 1
    assert codes(checked.text) == ["FSDP098", "FSDP361"]
    assert "see `fsdp-migrate explain FSDP302`" in checked.text
    after = file.read_bytes()
    assert real_cli("a.py", "--mark").code == 0
    assert file.read_bytes() == after
    file.write_text(file.read_text().replace(f"        {COMMENT}\n", ""))
    assert codes(real_cli("check", "a.py").text) == ["FSDP361"]


def test_without_it_the_code_has_no_comment(real_cli: Cli, folder: Path) -> None:
    (folder / "a.py").write_text(PROGRAM)
    assert real_cli("a.py").code == 0
    assert "review[" not in (folder / "a.py").read_text()


def test_the_diff_is_what_is_written(real_cli: Cli, folder: Path) -> None:
    (folder / "a.py").write_text(PROGRAM)
    patch = real_cli("a.py", "--diff", "--mark").text
    assert f"+        {COMMENT}" in patch
    assert real_cli("a.py", "--mark").code == 0
    added = [line[1:] for line in patch.splitlines() if line[:1] == "+" and line[:3] != "+++"]
    assert set(added) <= set((folder / "a.py").read_text().splitlines())


def test_assumptions_are_marked_at_the_constructor(real_cli: Cli, folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.fsdp-migrate]\nmark = true\nform = 'torch'\n")
    (folder / "a.py").write_bytes(PROGRAM.replace("\n", "\r\n").encode())
    assert real_cli("a.py").code == 0
    text = (folder / "a.py").read_bytes().decode()
    (sharded,) = re.findall(r"# fsdp-migrate: review\[FSDP003\]\r\n(.*)\r\n", text)
    assert "fully_shard(net" in sharded
    assert "\n" not in text.replace("\r\n", "")


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("# fsdp-migrate: review[FSDP302]\n", True),
        ("    # fsdp-migrate: review[FSDP302, FSDP507]\nx = 1\n", True),
        ("x = '# fsdp-migrate: review[FSDP302]'\n", False),
        ("# fsdp-migrate: reviewed FSDP302\n", False),
    ],
)
def test_only_the_comment_counts(real_cli: Cli, folder: Path, text: str, is_found: bool) -> None:
    (folder / "a.py").write_text(text)
    result = real_cli("check", "a.py")
    assert result.code == int(is_found)
    assert codes(result.text) == ["FSDP098"] * is_found
