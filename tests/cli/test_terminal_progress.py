"""How far a long run is, on a terminal alone."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.views.terminal import MANY

PROGRAM = "from torch.distributed.fsdp import FullyShardedDataParallel as F\n\nmodel = F(model)\n"


@pytest.mark.parametrize(("files", "is_shown"), [(MANY, True), (MANY - 1, False)])
def test_a_terminal_has_a_bar_for_many_files(files: int, is_shown: bool, tmp_path: Path) -> None:
    for number in range(files):
        (tmp_path / f"train{number}.py").write_text(PROGRAM)
    ours, theirs = pty.openpty()
    run = subprocess.run(
        [Path(sys.executable).with_name("fsdp-migrate"), "check", "."],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    try:
        shown = os.read(ours, 100_000).decode()
    except (BlockingIOError, OSError):
        shown = ""
    os.close(ours)
    assert run.returncode == 1
    assert ("100%" in shown) is is_shown
    assert b"100%" not in run.stdout
