"""Reentrant activation checkpoints, inside of which FSDP2 loses gradients of a unit that runs twice."""

from pathlib import Path

import pytest

from fsdp_migrate.findings import Action

from .programs import analysed

TRAIN = """\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.utils.checkpoint import checkpoint

model = FSDP(Net())
"""
LINES = {
    "y = checkpoint(f, x, use_reentrant=True)": "y = checkpoint(f, x, use_reentrant=False)",
    "impl = CheckpointImpl.REENTRANT": "impl = CheckpointImpl.NO_REENTRANT",
    "y = checkpoint(\n    f,\n    x,\n    use_reentrant=True,  # less memory\n)": (
        "y = checkpoint(\n    f,\n    x,\n    use_reentrant=False,  # less memory\n)"
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_the_torch_form_makes_them_not_reentrant(line: str, tmp_path: Path) -> None:
    program = analysed(tmp_path, f"{TRAIN}{line}\n", "torch")
    assert program.after["train.py"].endswith(f"{LINES[line]}\n")
    [own] = [each for each in program.findings if "not reentrant" in each.message]
    assert (own.code, own.action, own.assumption) == ("FSDP003", Action.REWRITE, False)


@pytest.mark.parametrize("form", ["auto", "bridge"])
def test_the_other_forms_keep_them(form: str, tmp_path: Path) -> None:
    line = "y = checkpoint(f, x, use_reentrant=True)"
    assert analysed(tmp_path, f"{TRAIN}{line}\n", form).is_kept(line)


def test_what_is_computed_is_assumed(tmp_path: Path) -> None:
    program = analysed(tmp_path, f"{TRAIN}model.gradient_checkpointing_enable()\n", "torch")
    messages = [each.message for each in program.findings if each.assumption]
    assert any("inside a reentrant activation checkpoint" in each for each in messages)
