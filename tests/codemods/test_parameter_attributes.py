"""Attributes of parameters that a function sets before the model is sharded."""

from pathlib import Path

import pytest

from .programs import analysed

MARKS = """\
import torch.nn as nn


def mark(model):
    for module in model.modules():
        if isinstance(module, nn.Linear):
            {sets}


class Head(nn.Module):
    pass
"""
TRAIN = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

import marks
from model import Net


def shard(model):
    return FSDP(model, {given})


def main():
    model = Net()
    {above}
    model = shard(model)
    {below}
    return model
"""
LOOP = "for p in module.parameters():\n                setattr(p, 'expert', True)"


def _said(folder: Path, sets: str = LOOP, **parts: str) -> str:
    own = {"given": "use_orig_params=True", "above": "marks.mark(model)", "below": "pass"}
    files = {
        "marks.py": MARKS.format(sets=sets),
        "train.py": TRAIN.format(**own | parts),
        "model.py": "import torch.nn as nn\n\n\nclass Net(nn.Module):\n    pass\n",
    }
    findings = analysed(folder, files, "torch").findings
    said = [each for each in findings if "This call sets attributes of parameters" in each.message]
    return " ".join(f"{each.line}: {each.construct} {each.message}" for each in said)


@pytest.mark.parametrize("sets", [LOOP, "module.weight.expert = True", "module.bias.lr = 0.1"])
def test_a_call_above_the_sharding_is_named(sets: str, tmp_path: Path) -> None:
    assert _said(tmp_path, sets).startswith("13: marks.mark(model) This call sets attributes")


@pytest.mark.parametrize(
    "sets",
    [
        "module.weight.data = 1",
        "module.kept = True",
        "for p in module.parameters():\n                p.requires_grad = True",
    ],
)
def test_a_function_that_sets_nothing_on_parameters_is_not(sets: str, tmp_path: Path) -> None:
    assert _said(tmp_path, sets) == ""


@pytest.mark.parametrize(
    "parts",
    [
        {"given": "use_orig_params=False"},  # FSDP1 lost them, too
        {"above": "pass", "below": "marks.mark(model)"},
        {"above": "marks.mark(Net())"},
    ],
)
def test_other_calls_are_not(parts: dict[str, str], tmp_path: Path) -> None:
    assert _said(tmp_path, **parts) == ""
