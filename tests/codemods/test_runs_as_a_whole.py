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
SHARDED = "StateDictType.SHARDED_STATE_DICT"
OPTIONS = [
    (FULL, "model, options=StateDictOptions(full_state_dict=True)"),
    (ON_RANK_0, "model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)"),
    (f"{FULL}, FullStateDictConfig(offload_to_cpu=True)", ""),
    (f"{FULL}, FullStateDictConfig(rank0_only=True)", ""),
    (SHARDED, "model"),
    (
        f"{SHARDED}, ShardedStateDictConfig(offload_to_cpu=True)",
        "model, options=StateDictOptions(cpu_offload=True)",
    ),
]


@pytest.mark.parametrize(("given", "asks"), OPTIONS)
def test_options_of_a_state_dict(given: str, asks: str, tmp_path: Path) -> None:
    text = f"{HEAD}with FSDP.state_dict_type(model, {given}):\n    state = model.state_dict()\n"
    after = "".join(analysed(tmp_path, text).after["train.py"].split())
    assert ("get_model_state_dict(" in after) == bool(asks)
    assert "".join(f"get_model_state_dict({asks})".split()) in after or not asks


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
        f"{HEAD}{other}# no HYBRID_SHARD here\nmodel = FSDP(Net(), sharding_strategy={strategy})\n"
        f"with FSDP.state_dict_type(model, {ON_RANK_0}):\n    state = model.state_dict()\n"
    )
    assert ("get_model_state_dict" in analysed(tmp_path, text).after["train.py"]) == becomes


@pytest.mark.parametrize(
    ("around", "becomes"), [("torch.no_grad()", True), ("FSDP.summon_full_params(model)", False)]
)
def test_a_bare_state_dict(around: str, becomes: bool, tmp_path: Path) -> None:
    main = "def main():\n    model = FSDP(torch.nn.Linear(2, 2))\n    with "
    text = f"{HEAD}{main}{around}:\n        torch.save(model.state_dict(), path)\n"
    program = analysed(tmp_path, text)
    assert ("get_model_state_dict" in program.after["train.py"]) == becomes
