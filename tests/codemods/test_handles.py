"""Loops over FSDP1's handles, in torch's form."""

from pathlib import Path

import pytest

from .programs import analysed

PROGRAM = """\
import torch
import torch.distributed.fsdp._traversal_utils as utils
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


@torch.no_grad()
def update(average, model, decay):
    old_handles = utils._get_fsdp_handles(average)
    new_handles = utils._get_fsdp_handles(model)
    assert len(old_handles) == len(new_handles)
    old = []
    new = []
    for old_handle, new_handle in zip(old_handles, new_handles):
        if old_handle.flat_param is not None and new_handle.flat_param.requires_grad:
            old.append(old_handle.flat_param.data)
            new.append(new_handle.flat_param.data.to(dtype=old_handle.flat_param.dtype))
    torch._foreach_lerp_(old, new, 1 - decay)


model = FSDP(torch.nn.Linear(8, 8))
average = FSDP(torch.nn.Linear(8, 8))
"""
UPDATE = """\
def update(average, model, decay):
    assert len(list(average.parameters())) == len(list(model.parameters()))
    old = []
    new = []
    for old_param, new_param in zip(average.parameters(), model.parameters()):
        if new_param.requires_grad:
            old.append(old_param.data)
            new.append(new_param.data.to(dtype=old_param.dtype))
    torch._foreach_lerp_(old, new, 1 - decay)
"""
ONE = """\
def shrink(model):
    handles = utils._get_fsdp_handles(model)
    for handle in handles:
        handle.flat_param.data.mul_(0.5)


"""


def test_an_average_over_handles(tmp_path: Path) -> None:
    program = analysed(tmp_path, PROGRAM, "torch")
    after = program.after["train.py"]
    assert UPDATE in after
    assert "utils" not in after
    assert {each.code for each in program.findings}.isdisjoint({"FSDP014", "FSDP366"})


def test_a_loop_over_one_list(tmp_path: Path) -> None:
    text = PROGRAM.replace("model = FSDP", f"{ONE}model = FSDP").replace("@torch.no_grad()\n", "")
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert "    for param in model.parameters():\n        param.data.mul_(0.5)\n" in after


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    old = []\n", "    old = []\n    print(old_handles[0])\n"),
        ("old_handle.flat_param.data)", "old_handle.flat_param.data.numel())"),
        ("old_handle.flat_param.data)", "old_handle.flat_param._local_shard)"),
        ("old_handle.flat_param.data)", "old_handle.flat_param.data.sum())"),
        ("old_handle.flat_param.data)", "old_handle)"),
        ("old_handle.flat_param is not None and", "old_handle.uses_sharded_strategy and"),
        ("torch._foreach_lerp_(old", "torch.cat(old)\n    torch._foreach_lerp_(old"),
        ("torch._foreach_lerp_(old, new", "lerp(old, new"),
        ("zip(old_handles, new_handles)", "zip(old_handles, new_handles, [1])"),
        ("    old = []\n", "    old = []\n    old_param = 1\n"),
        ("old_handles = utils", "old_handles = [1]\n    old_handles = utils"),
    ],
)
def test_other_loops_need_the_user(old: str, new: str, tmp_path: Path) -> None:
    program = analysed(tmp_path, PROGRAM.replace(old, new), "torch")
    assert program.is_kept("_get_fsdp_handles")
    assert "FSDP014" in program.codes("_get_fsdp_handles")


@pytest.mark.parametrize("form", ["auto", "bridge"])
def test_other_forms_leave_them(form: str, tmp_path: Path) -> None:
    program = analysed(tmp_path, PROGRAM, form)
    assert program.is_kept("old_handle.flat_param")
    assert "FSDP014" in program.codes("_get_fsdp_handles")
