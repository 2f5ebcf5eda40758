"""What a program has a name for already, new code calls by that name."""

from pathlib import Path

import pytest

from .programs import analysed

RECIPE = """\
import torch
from devices import find, get_device
from model import Block, Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


class Recipe:
    def __init__(self, config, rank, local_rank):
        self.rank = rank
        self.local_rank = local_rank
        self.is_rank_zero = rank == 0
        self.device = {device}

    def setup(self, model):
        return FSDP(
            model,
            device_id=self.device,
            sync_module_states=True,
            sharding_strategy=ShardingStrategy.{strategy},
            param_init_fn=lambda m: m.to_empty(device="cuda", recurse=False) if {test} else None,
        )


print(torch.device("cpu"), Block)
"""
DEVICES = """\
import torch


def get_device(name) -> torch.device:
    return torch.device(name)


def find(name):
    return name
"""


def recipe(
    folder: Path, test: str = "self.rank", device: str = "0", strategy: str = "FULL_SHARD"
) -> str:
    text = RECIPE.format(test=test, device=device, strategy=strategy)
    return analysed(folder, {"train.py": text, "devices.py": DEVICES}, "torch").after["train.py"]


@pytest.mark.parametrize(
    ("test", "own"),
    [
        ("not self.is_rank_zero", "self.is_rank_zero"),
        ("self.rank != 0", "self.rank == 0"),
        ("self.lazy and self.rank != 0", "self.rank == 0"),
        ("self.local_rank != 0", ""),
        ("not self.local_rank_zero", ""),
        ("not self.is_real", ""),
    ],
)
def test_the_programs_own_test_for_rank_0(test: str, own: str, tmp_path: Path) -> None:
    after = recipe(tmp_path, test)
    condition = own or "torch.distributed.get_rank() == 0"
    state = f"state_dict = model.state_dict() if {condition} else {{}}"
    assert state in " ".join(after.split()), after


@pytest.mark.parametrize(
    ("device", "own"),
    [
        ("get_device(config.device)", "self.device.type"),
        ("torch.device(config.device)", "self.device.type"),
        ("find(config.device)", '"cuda" if torch.cuda.is_available() else "cpu"'),
        ("rank", '"cuda" if torch.cuda.is_available() else "cpu"'),
    ],
)
def test_the_type_of_the_programs_own_device(device: str, own: str, tmp_path: Path) -> None:
    after = recipe(tmp_path, device=device, strategy="HYBRID_SHARD")
    assert f"init_device_mesh( {own}," in " ".join(after.split()), after


def test_a_policy_that_two_calls_read_is_written_once(tmp_path: Path) -> None:
    text = """\
        from model import Block, Net
        from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy


        def shard(model, offload):
            policy = ModuleWrapPolicy({Block})
            return FSDP(model, auto_wrap_policy=policy, cpu_offload=CPUOffload(offload))
        """
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert after.count("CPUOffloadPolicy()") == 1
    assert after.count("offload_policy=offload_policy") == 2


SAVE = """\
from model import Net
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType

policy = FullStateDictConfig(offload_to_cpu={offload}, rank0_only=True)


def save(model):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
        return model.state_dict()


def save_optimizer(model, optimizer{more}):
    return FSDP.full_optim_state_dict(model, optimizer)


model = FSDP(Net())
"""


@pytest.mark.parametrize(
    ("offload", "more", "has_name"),
    [("True", "", True), ("True", ", policy=None", False), ("args.offload", "", False)],
)
def test_options_of_the_whole_file(offload: str, more: str, has_name: bool, tmp_path: Path) -> None:
    text = SAVE.format(offload=offload, more=more)
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert "policy = StateDictOptions(" in after
    own = after.partition("def save_optimizer")[2]
    assert ("get_optimizer_state_dict(model, optimizer, options=policy)" in own) is has_name
    assert ("StateDictOptions" in own) is not has_name
