"""Arguments whose value has a name: what becomes plain, and what happens where the value is made."""

from pathlib import Path

import pytest

from .programs import analysed

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

"""


def test_a_policy_that_another_file_imports_and_hands_back(tmp_path: Path) -> None:
    made = "own = ModuleWrapPolicy({nn.Linear})"
    use = "from other import policy\nmodel = FSDP(nn.Linear(2, 2), auto_wrap_policy=policy)\n"
    other = "from train import own\n\npolicy = own\n"
    files = {"train.py": f"{HEAD}{made}\n{use}", "other.py": other}
    after = analysed(tmp_path, files).after["train.py"]
    assert f"\n{made}\nmodel = " in after
    assert (
        "    for module in reversed(list(model.modules())[1:]):\n        if isinstance(module, nn.Linear):\n"
        in after
    )


def test_what_is_local_goes_whatever_others_import(tmp_path: Path) -> None:
    text = (
        "def build():\n    zero2 = ShardingStrategy.SHARD_GRAD_OP\n"
        "    return FSDP(nn.Linear(2, 2), sharding_strategy=zero2)\n\n\nmodel = build()\n"
    )
    files = {"train.py": HEAD + text, "other.py": "from train import build, zero2\n"}
    after = analysed(tmp_path, files).after["train.py"]
    assert "zero2" not in after
    assert "fully_shard(model, reshard_after_forward=False)\n" in after


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("CPUOffload(True)", "Replaced by `offload_policy=CPUOffloadPolicy()`."),
        ("False", "Has no effect: nothing is offloaded, which is the default."),
        ("read()", (
            "Replaced by `offload_policy`: `CPUOffloadPolicy()` where `offload_params` was true, else `OffloadPolicy()`, "
            "which does not offload."
        )),
    ],
)  # fmt: skip
def test_offloading_is_said_with_its_condition(given: str, said: str, tmp_path: Path) -> None:
    found = analysed(
        tmp_path, f"{HEAD}model = FSDP(nn.Linear(2, 2), cpu_offload={given})\n"
    ).findings
    assert [each.message for each in found if each.code == "FSDP201"] == [said]


def test_empty_lines_above_a_definition_stay_two(tmp_path: Path) -> None:
    """Where a statement goes between an import and a definition, as black has it."""
    middle = 'strict = "yes"\n\n\ndef own(x):\n    return x\n\n\n'
    last = 'model = FSDP(nn.Linear(2, 2), limit_all_gathers=strict == "yes")\n'
    after = analysed(tmp_path, f"{HEAD}\n{middle}{last}").after["train.py"]
    assert "strict" not in after
    assert "\n\n\ndef own(x):\n    return x\n\n\n" in after
    assert "\n\n\n\n" not in after
