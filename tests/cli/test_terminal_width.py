"""What a terminal shows in its width; any other output has one line for each finding."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import click
import pytest

from fsdp_migrate.codemods.registry import all_rules
from fsdp_migrate.findings import Action, Finding, Severity
from fsdp_migrate.views.pages import for_terminal
from fsdp_migrate.views.terminal import wrapped
from fsdp_migrate.views.text import render_findings, render_grouped

MESSAGE = "Under FSDP1 it was this rank's shard. " * 4
FINDING = Finding(
    "train.py", 7, 3, 7, 9, "FSDP507", "some", Action.MANUAL, MESSAGE, "p.ndim", Severity.SILENT
)


def shown(*command: str, folder: Path, columns: int) -> str:
    """What a command prints on a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    script = Path(sys.executable).with_name("fsdp-migrate")
    process = subprocess.Popen(
        [script, *command],
        cwd=folder,
        stdout=theirs,
        stderr=theirs,
        env=environment | {"NO_COLOR": "1"},
    )
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    process.wait()
    return b"".join(parts).decode().replace("\r\n", "\n")


def test_a_terminal_has_the_place_first_and_the_message_below(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        "model = FSDP(model, limit_all_gathers=True)\n"
    )
    lines = shown("check", ".", folder=tmp_path, columns=60).splitlines()
    assert "train.py:3:9 FSDP002" in lines
    assert lines[lines.index("train.py:3:9 FSDP002") + 1].startswith("    `FSDP(...)`: ")
    assert max(map(len, lines)) <= 60
    script = Path(sys.executable).with_name("fsdp-migrate")
    piped = subprocess.run([script, "check", "."], cwd=tmp_path, capture_output=True, text=True)
    first = piped.stdout.splitlines()[1]
    assert first.startswith("train.py:3:9 FSDP002 `FSDP(...)`: Replaced by")
    assert first.endswith("same object.")


@pytest.mark.parametrize("render", [render_findings, render_grouped])
def test_a_finding_that_does_not_fit_is_wrapped(render: object) -> None:
    lines = [click.unstyle(line) for line in render([FINDING], 40)]  # type: ignore[operator]
    first, *rest = lines[-1].splitlines()
    assert first == "train.py:7:3 FSDP507"
    assert all(line.startswith("    ") and len(line) <= 40 for line in rest)
    (whole,) = [line for line in render([FINDING]) if "FSDP507" in line]  # type: ignore[operator]
    assert "\n" not in whole


def test_names_and_commands_are_not_broken() -> None:
    text = "Run `fsdp-migrate --form torch` on /a/very-long/path/of-a/file.py and look."
    assert wrapped(text, 20).splitlines() == [
        "Run `fsdp-migrate",
        "    --form torch` on",
        "    /a/very-long/path/of-a/file.py",
        "    and look.",
    ]
    assert wrapped(text, 0) == text


def test_a_page_is_as_wide_as_the_terminal() -> None:
    page = (
        "# FSDP1 a-rule\n\nSome prose that is longer than\nthe terminal is.\n\n"
        "| use | FSDP1 | FSDP2 |\n|---|---|---|\n| `a \\| b` of many words | one of them | the other |\n\n"
        "- an item that is longer than that\n\n```python\nmodel = FSDP(model, some=argument)\n```"
    )
    assert for_terminal(page, 24).splitlines() == [
        "# FSDP1 a-rule",
        "",
        "Some prose that is",
        "longer than the terminal",
        "is.",
        "",
        "- `a | b` of many words",
        "    FSDP1: one of them",
        "    FSDP2: the other",
        "",
        "- an item that is longer",
        "  than that",
        "",
        "```python",
        "model = FSDP(model, some=argument)",
        "```",
    ]
    assert for_terminal(page, 0) == page


def test_every_page_keeps_its_words_and_its_code() -> None:
    for rule in all_rules():
        page = rule.page
        made = for_terminal(page, 70)
        blocks = page.split("```")[1::2]
        assert made.split("```")[1::2] == blocks, rule.code
        prose = "".join(part for part in page.split("```")[::2])
        words = {word for word in prose.replace("|", " ").split() if word.isalpha()}
        titles = {
            word for line in prose.splitlines() if line.startswith("|") for word in line.split()
        }
        assert words - {*made.split()} <= titles, rule.code
