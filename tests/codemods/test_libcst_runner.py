"""Every codemod runs under LibCST's own runner."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from libcst.codemod import CodemodContext

from fsdp_migrate.codemods.registry import CODEMODS

PROGRAM = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
with model.no_sync():  # local gradients
    model(batch).backward()
print(isinstance(model, FSDP))
"""


@pytest.mark.parametrize(
    "codemod", CODEMODS, ids=lambda codemod: codemod.__name__.rpartition(".")[2]
)
def test_runs_on_a_file_and_keeps_its_comments(codemod: object) -> None:
    import libcst as cst

    instance = codemod.Command(CodemodContext(filename="train.py"))  # type: ignore[attr-defined]
    after = instance.transform_module(cst.parse_module(PROGRAM)).code
    assert "# local gradients" in after
    compile(after, "after", "exec")


def test_the_runner_applies_one_construct(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    (tmp_path / ".libcst.codemod.yaml").write_text("formatter: []\nmodules: []\nrepo_root: '.'\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "libcst.tool", "codemod", "-x"),
            *("fsdp_migrate.codemods.loop.no_sync.Command", "train.py", "--no-format", "-j", "1"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    after = file.read_text()
    assert "with no_sync(model):  # local gradients" in after
    assert "from fsdp_migrate.runtime import no_sync" in after
    assert "model = FSDP(model)" in after
