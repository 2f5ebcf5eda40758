"""A strategy that a function chooses becomes a mesh there, unless no mesh can be made, or something else reads it."""

from pathlib import Path

import pytest

from .programs import analysed

POLICIES = """\
import torch.distributed as dist
from torch.distributed.fsdp import ShardingStrategy


def get_policies(config):
    wrapping = config.wrapping
    if config.strategy == "fsdp":
        strategy = ShardingStrategy.FULL_SHARD
    elif config.strategy == "hsdp":
        strategy = ShardingStrategy.HYBRID_SHARD
    else:
        strategy = ShardingStrategy.NO_SHARD
    return wrapping, strategy
"""
TRAIN = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from policies import get_policies
from start import start


def main(config, model):
    start()
    wrapping, strategy = get_policies(config)
    model = FSDP(model, sharding_strategy=strategy)
    return model
"""
START = "import torch.distributed as dist\n\n\ndef start():\n    dist.init_process_group()\n"
FILES = {"policies.py": POLICIES, "train.py": TRAIN, "start.py": START}


@pytest.mark.parametrize("form", ["auto", "torch"])
def test_a_strategy_becomes_a_mesh_where_it_is_chosen(form: str, tmp_path: Path) -> None:
    after = analysed(tmp_path, FILES, form).after
    assert "strateg" not in after["train.py"]
    assert "    wrapping, mesh = get_policies(config)\n" in after["train.py"]
    assert "fully_shard(model, mesh=mesh)" in after["train.py"]
    chosen = after["policies.py"].partition("    wrapping = config.wrapping\n")[2]
    assert (
        chosen
        == """\
    if config.strategy == "fsdp":
        mesh = None
    elif config.strategy == "hsdp":
        per_node = torch.cuda.device_count()
        mesh = init_device_mesh(
            "cuda",
            (dist.get_world_size() // per_node, per_node),
            mesh_dim_names=("replicate", "shard"),
        )
    else:
        mesh = init_device_mesh(
            "cuda", (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard")
        )
    return wrapping, mesh
"""
    )
    assert "ShardingStrategy" not in after["policies.py"]
    assert "from torch.distributed.device_mesh import init_device_mesh\n" in after["policies.py"]


STAYS = {
    "the process group starts later": (
        "train.py",
        "    start()\n    wrapping, strategy = get_policies(config)\n",
        "    wrapping, strategy = get_policies(config)\n    start()\n",
    ),
    "a print of it": ("policies.py", "    return", "    print(strategy)\n    return"),
    "a member that keeps parameters": ("policies.py", "FULL_SHARD", "SHARD_GRAD_OP"),
    "a mesh of the program's own": (
        "train.py",
        "=strategy)",
        "=strategy, device_mesh=config.mesh)",
    ),
    "a function that is a value": ("train.py", "    return model\n", "    return get_policies\n"),
    "another caller": (
        "start.py",
        "def start",
        "import policies\nx = policies.get_policies(1)\n\n\ndef start",
    ),
    "a value of another name": (
        "policies.py",
        "    else:\n",
        "    elif config.own:\n        strategy = config.own\n    else:\n",
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_a_strategy_stays_if_it_is_more_than_a_mesh(name: str, tmp_path: Path) -> None:
    file, old, new = STAYS[name]
    files = {**FILES, file: FILES[file].replace(old, new)}
    assert files != FILES
    after = analysed(tmp_path, files, "torch").after
    assert "strategy = ShardingStrategy.NO_SHARD" in after.get("policies.py", POLICIES)
    assert "wrapping, strategy = get_policies(config)" in after["train.py"]
