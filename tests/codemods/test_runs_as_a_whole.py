"""What a program as a whole says of its scalers and state dicts: each word of the tables, alone in a program."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch

from .programs import analysed

HEAD = """\
import torch
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
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


FULL = "StateDictType.FULL_STATE_DICT"
ON_RANK_0 = f"{FULL}, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"
RANK_0 = [
    *((f"ShardingStrategy.{name}", "", True) for name in ("FULL_SHARD", "SHARD_GRAD_OP")),
    ("ShardingStrategy.NO_SHARD", "", True),
    ("ShardingStrategy.HYBRID_SHARD", "", False),
    ("ShardingStrategy.FULL_SHARD", "model._register_state_dict_hook(hook)\n", False),
    ("ShardingStrategy.FULL_SHARD", "model.register_state_dict_post_hook(hook)\n", False),
]


@pytest.mark.parametrize(("strategy", "other", "becomes"), RANK_0)
def test_which_rank_has_the_state_dict(
    strategy: str, other: str, becomes: bool, tmp_path: Path
) -> None:
    text = (
        f"{HEAD}{other}model = FSDP(Net(), sharding_strategy={strategy})\n"
        f"with FSDP.state_dict_type(model, {ON_RANK_0}):\n    state = model.state_dict()\n"
    )
    assert ("get_model_state_dict" in analysed(tmp_path, text).after["train.py"]) == becomes
