"""What a program as a whole says of its scalers: each word of the tables, alone in a program."""

import inspect
from pathlib import Path

import pytest
import torch

from .programs import analysed

HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
"""
SCALER = [
    *((f"{name}=x", "", True) for name in inspect.signature(torch.amp.GradScaler).parameters),
    ("'cuda'", "", False),
    ("process_group=group", "", False),
    ("**given", "", False),
    ("", "model.half()", False),
    ("", "model.to(torch.float16)", False),
    ("", "model.to(torch.half)", False),
    ("", "model = Net.from_pretrained(path, dtype=torch.float16)", False),
    ("", "torch.set_default_dtype(torch.half)", False),
    ("", "half = torch.float16", True),
    ("", "model = FSDP(model, ignored_modules=[model.head])", False),
    ("", "model = FSDP(model, ignored_states = None)", True),
]


@pytest.mark.parametrize(("given", "other", "becomes"), SCALER)
def test_a_scaler(given: str, other: str, becomes: bool, tmp_path: Path) -> None:
    program = analysed(tmp_path, f"{HEAD}{other}\nscaler = ShardedGradScaler({given})\n")
    assert (f"torch.amp.GradScaler({given})" in program.after["train.py"]) == becomes
    assert ("ShardedGradScaler" in program.after["train.py"]) != becomes
