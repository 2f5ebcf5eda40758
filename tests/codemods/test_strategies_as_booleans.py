"""A strategy becomes `reshard_after_forward` where it is chosen, unless it decides the mesh, or something else reads it."""

from pathlib import Path

import pytest

from .programs import analysed

ATTRIBUTE = """\
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from model import Block


class Trainer:
    def __init__(self, zero):
        if zero == 2:
            self.strategy = ShardingStrategy._HYBRID_SHARD_ZERO2
        else:
            self.strategy = ShardingStrategy.HYBRID_SHARD

    def shard(self, model):
        return FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=self.strategy)
"""
VARIABLE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from model import Block


def shard(model, zero):
    if zero == 2:
        strategy = ShardingStrategy.SHARD_GRAD_OP
    elif zero == 3:
        strategy = ShardingStrategy.FULL_SHARD
    else:
        strategy = {4: ShardingStrategy.SHARD_GRAD_OP, 5: ShardingStrategy.FULL_SHARD}[zero]
    return FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=strategy)
"""
PARAMETER = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from model import Block


def shard(model, strategy=ShardingStrategy.SHARD_GRAD_OP):
    return FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=strategy)
"""
MAIN = """\
from functools import partial

from train import shard

sharded = partial(shard)
"""
PROGRAMS = {"attribute": ATTRIBUTE, "variable": VARIABLE, "parameter": PARAMETER}


@pytest.mark.parametrize("form", ["auto", "torch"])
def test_a_hybrid_strategy_is_a_boolean_and_a_mesh(form: str, tmp_path: Path) -> None:
    after = analysed(tmp_path, {"train.py": ATTRIBUTE, "main.py": MAIN}, form).after["train.py"]
    assert "trategy" not in after
    assert "            self.reshard_after_forward = False\n" in after
    assert "            self.reshard_after_forward = True\n" in after
    assert "reshard_after_forward=self.reshard_after_forward" in after
    assert "    mesh = init_device_mesh(" in after


@pytest.mark.parametrize("form", ["auto", "torch"])
def test_each_assignment_of_a_variable_is_a_boolean(form: str, tmp_path: Path) -> None:
    after = analysed(tmp_path, {"train.py": VARIABLE, "main.py": MAIN}, form).after["train.py"]
    assert "trategy" not in after
    assert "    if zero == 2:\n        reshard_after_forward = False\n" in after
    assert "    elif zero == 3:\n        reshard_after_forward = True\n" in after
    assert "    else:\n        reshard_after_forward = zero != 4\n" in after


@pytest.mark.parametrize("form", ["auto", "torch"])
def test_a_parameter_that_nobody_passes(form: str, tmp_path: Path) -> None:
    after = analysed(tmp_path, {"train.py": PARAMETER, "main.py": MAIN}, form).after["train.py"]
    assert "trategy" not in after
    assert "def shard(model, reshard_after_forward=False):" in after
    assert "reshard_after_forward=reshard_after_forward" in after


STAYS = {
    "another attribute of this name": (
        "attribute",
        "main.py",
        "sharded =",
        "print(trainer.strategy)\nsharded =",
    ),
    "a name in a string": (
        "attribute",
        "train.py",
        "    def shard",
        "    kept = 'strategy'\n\n    def shard",
    ),
    "one that all ranks keep": ("attribute", "train.py", "_HYBRID_SHARD_ZERO2", "NO_SHARD"),
    "another mesh": ("attribute", "train.py", ".HYBRID_SHARD", ".FULL_SHARD"),
    "a print of it": ("variable", "train.py", "    return", "    print(strategy)\n    return"),
    "the new name is taken": ("variable", "train.py", "def", "reshard_after_forward = 1\n\n\ndef"),
    "a caller that passes it": (
        "parameter",
        "main.py",
        "partial(shard)",
        "shard(1, strategy=None)",
    ),
    "a caller that has members": (
        "parameter",
        "main.py",
        "partial(shard)",
        "partial(shard, **dict(strategy=fsdp.ShardingStrategy.FULL_SHARD))",
    ),
    "words about it": (
        "parameter",
        "train.py",
        "    return",
        '    """By `strategy`."""\n    return',
    ),
}


@pytest.mark.parametrize("change", STAYS)
def test_others_stay(change: str, tmp_path: Path) -> None:
    program, name, old, new = STAYS[change]
    files = {"train.py": PROGRAMS[program], "main.py": MAIN}
    assert old in files[name]
    files[name] = files[name].replace(old, new)
    after = analysed(tmp_path, files, "torch").after["train.py"]
    assert "reshard_after_forward = True" not in after
    assert "reshard_after_forward = False" not in after
    assert "reshard_after_forward=False)" not in after
    assert "strategy" in after
