"""Generated code without what a reader does not need: names that are read once, copies, comments that repeat the code."""

from pathlib import Path

import pytest

from fsdp_migrate.codemods.constructor.once import inlined

from .programs import MODEL, analysed

LINES = {
    "in a call": (["a = f(1)", "shard(model, a=a)"], ["shard(model, a=f(1))"]),
    "in a dictionary": (["a = f(1)", 'd = {"a": a, "b": 1}'], ['d = {"a": f(1), "b": 1}']),
    "in a block": (["a = f(1)", "if x:", "    shard(a=a)"], ["if x:", "    shard(a=f(1))"]),
    "read twice": (["a = f(1)", "shard(a, a)"], None),
    "read in two statements": (["a = f(1)", "shard(a)", "shard(a)"], None),
    "made twice": (["a = f(1)", "if x:", "    a = 2", "shard(a)"], None),
    "an attribute of that name": (["a = f(1)", "shard(b.a)"], None),
    "what would take more lines": (["a = f(1, 22222)", "shard(model, 1, a)"], None),
}


@pytest.mark.parametrize("case", LINES)
def test_a_name_that_is_read_once(case: str) -> None:
    lines, expected = LINES[case]
    assert inlined(lines, ["a"], 24) == (lines if expected is None else expected)


PROGRAM = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net


def shard(model, device, sync_module_states=True):
    model = FSDP(model, device_id=device, sync_module_states={sync})
    return model


def main(device):
    model = Net(){moved}
    {between}
    return shard(model, device)
"""
COPIED = "value = tensor.detach().to(device)"
# How the model is moved, what stands between that and the sharding, and whether its tensors are there then.
MOVED = {
    "where it is made": (".to(device)", "pass", True),
    "by a statement": ("", "model.to(device)", True),
    "before a block": (".to(device)", "if device:\n        model.load_state_dict(1)", True),
    "nowhere": ("", "pass", False),
    "elsewhere": (".to(torch.bfloat16)", "pass", False),
    "under a condition": ("", "if device:\n        model.to(device)", False),
    "and back": (".to(device)", "model.cpu()", False),
    "and back under a condition": (".to(device)", "if device:\n        model.cpu()", False),
    "without a new part": (".to(device)", "model.head = Net()", False),
}


@pytest.mark.parametrize("case", MOVED)
def test_a_model_that_is_on_its_device_is_broadcast_in_place(case: str, tmp_path: Path) -> None:
    moved, between, is_there = MOVED[case]
    text = PROGRAM.replace("{sync}", "True").replace("{moved}", moved)
    files = {"train.py": text.replace("{between}", between), "model.py": MODEL}
    after = analysed(tmp_path, files, "torch").after["train.py"]
    assert (COPIED in after) is not is_there, after
    assert ("dist.broadcast(tensor.detach(), src=0)" in after) is is_there
    assert "# Every rank begins with rank 0's values" in after


def test_a_comment_does_not_repeat_the_condition(tmp_path: Path) -> None:
    text = PROGRAM.replace("{sync}", "sync_module_states").replace("{moved}", "")
    files = {"train.py": text.replace("{between}", "pass"), "model.py": MODEL}
    after = analysed(tmp_path, files, "torch").after["train.py"]
    assert "if sync_module_states:\n" in after
    assert "# Every rank" not in after


def test_a_target_of_its_own_is_assigned_where_the_root_is_sharded(tmp_path: Path) -> None:
    text = """\
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
    from library import Net


    class Trainer:
        def __init__(self, policy):
            precision = MixedPrecision(buffer_dtype=torch.bfloat16)
            self.policy = FSDP(policy, mixed_precision=precision)
    """
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert "        self.policy = fully_shard(policy" in after
    assert after.index("self.policy = fully_shard") < after.index("for buffer in policy.buffers()")
    assert "self.policy = policy" not in after
