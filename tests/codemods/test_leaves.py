"""Arguments whose value has a name: what becomes plain, and what happens where the value is made."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .programs import analysed

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

"""
# The last argument of a call that `units` reads, and which stays with what is above it.
STAYS = {
    "a name, whose value a call makes": (
        "offload = CPUOffload(read())\nshow()\n",
        "cpu_offload=offload",
    ),
    "a name of another module": ("from settings import strategy\n", "sharding_strategy=strategy"),
    "a part of what is unpacked": (
        "strategy, other = ShardingStrategy.NO_SHARD, 1\n",
        "sharding_strategy=strategy",
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_a_value_that_stays(name: str, tmp_path: Path) -> None:
    above, given = STAYS[name]
    after = analysed(tmp_path, f"{HEAD}{above}model = FSDP(net, {given})\n").after["train.py"]
    assert above in after
    assert f"in units(net, {given}):" in ast.unparse(ast.parse(after))


def test_a_policy_that_shares_its_line_stays(tmp_path: Path) -> None:
    text = "policy = ModuleWrapPolicy({nn.Linear}); other = 1\nmodel = FSDP(net, auto_wrap_policy=policy)\n"
    after = analysed(tmp_path, HEAD + text).after["train.py"]
    assert "\npolicy = ModuleWrapPolicy({nn.Linear}); other = 1\n" in after
    assert "        if module is not net and isinstance(module, nn.Linear):\n" in after


def test_a_policy_that_another_file_imports_and_hands_back(tmp_path: Path) -> None:
    made = "own = ModuleWrapPolicy({nn.Linear})"
    use = "from other import policy\nmodel = FSDP(nn.Linear(2, 2), auto_wrap_policy=policy)\n"
    other = "from train import own\n\npolicy = own\n"
    after = analysed(tmp_path, {"train.py": f"{HEAD}{made}\n{use}", "other.py": other}).after
    assert f"\n{made}\nfrom other import policy\n" in after["train.py"]
    assert (
        "        if module is not model and isinstance(module, nn.Linear):\n" in after["train.py"]
    )


def test_what_is_local_goes_whatever_others_import(tmp_path: Path) -> None:
    text = (
        "def build():\n    zero2 = ShardingStrategy.SHARD_GRAD_OP\n"
        "    return FSDP(nn.Linear(2, 2), sharding_strategy=zero2)\n\n\nmodel = build()\n"
    )
    files = {"train.py": HEAD + text, "other.py": "from train import build, zero2\n"}
    after = analysed(tmp_path, files).after["train.py"]
    assert "zero2" not in after
    assert "        fully_shard(model, reshard_after_forward=False)\n    return model\n" in after


def test_what_others_import_stays(tmp_path: Path) -> None:
    text = "zero2 = ShardingStrategy.SHARD_GRAD_OP\nmodel = FSDP(nn.Linear(2, 2), sharding_strategy=zero2)\n"
    files = {"train.py": HEAD + text, "other.py": "from train import zero2\n"}
    assert "zero2 = " in analysed(tmp_path, files).after["train.py"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("CPUOffload(True)", "becomes CPUOffloadPolicy() in every unit"),
        ("False", "nothing is offloaded, as by default"),
        ("read()", "the runtime reads it: CPUOffloadPolicy() if its flag is set, else nothing is offloaded"),
    ],
)  # fmt: skip
def test_offloading_is_said_with_its_condition(given: str, said: str, tmp_path: Path) -> None:
    found = analysed(
        tmp_path, f"{HEAD}model = FSDP(nn.Linear(2, 2), cpu_offload={given})\n"
    ).findings
    assert [each.message for each in found if each.code == "FSDP201"] == [said]


def test_a_context_that_stays_is_not_said_to_be_on_the_bridge(tmp_path: Path) -> None:
    text = """\
def save(trainer, kind):
    with FSDP.state_dict_type(trainer.model, kind):
        trainer.save_model()
    return isinstance(trainer.model, torch.distributed.fsdp.FullyShardedDataParallel)
"""
    found = analysed(tmp_path, f"{HEAD}{text}").findings
    assert not any("bridge" in each.message for each in found)
    assert any(
        each.message.startswith("the runtime sets the type, of a model in any form")
        for each in found
    )
