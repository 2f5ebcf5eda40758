"""Modules of which FSDP1 wraps parts: their state dicts hold shards, too."""

from pathlib import Path

import pytest

from .programs import analysed

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = nn.ModuleDict({"head": nn.Linear(4, 4)})
        self.body = nn.Linear(4, 4)

    def shard(self):
        for name in self.teacher:
            self.teacher[name] = FSDP(self.teacher[name])


def wrapper(size):
    return partial(FSDP, sharding_strategy=size)


"""
# Where a state dict is saved that has shards of a part.
PARTS = {
    "of an attribute": "def main(model):\n    model.body = FSDP(model.body)\n    torch.save({}, 'x')\n",
    "of elements": "def main():\n    pair = Pair()\n    pair.shard()\n    torch.save({}, 'x')\n",
    "by what a function returns": (
        "def main(model, size):\n    model.body = wrapper(size)(model.body)\n    torch.save({}, 'x')\n"
    ),
}
MODELS = {"of an attribute": "model", "of elements": "pair", "by what a function returns": "model"}


@pytest.mark.parametrize("case", PARTS)
def test_the_whole_is_saved(case: str, tmp_path: Path) -> None:
    model = MODELS[case]
    text = PARTS[case].replace("{}", f"{model}.state_dict()")
    program = analysed(tmp_path, HEAD + text, "torch")
    whole = f"get_model_state_dict({model}, options=StateDictOptions(full_state_dict=True))"
    assert f"torch.save({whole}, 'x')" in program.after["train.py"]


def test_a_part_that_holds_wrapped_modules(tmp_path: Path) -> None:
    text = "def save(pair):\n    kept = pair.teacher.state_dict()\n    return kept\n"
    program = analysed(tmp_path, HEAD + text, "torch")
    assert program.codes("kept = ") == {"FSDP003"}
    # Two statements away it is not known whether the buffers change in between.
    assert program.is_kept("kept = ")


# Not wrapped yet, another model, or no module at all.
OTHERS = {
    "before": "def main(model):\n    kept = model.state_dict()\n    model.body = FSDP(model.body)\n",
    "another": "def main(model, other):\n    model.body = FSDP(model.body)\n    kept = other.state_dict()\n",
    "no module": (
        "class Trainer:\n    def start(self, net):\n        self.net = FSDP(net)\n"
        "        kept = self.state_dict()\n\n    def state_dict(self):\n        return {}\n"
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_state_dicts_are_kept(case: str, tmp_path: Path) -> None:
    program = analysed(tmp_path, HEAD + OTHERS[case], "torch")
    assert program.codes("kept = ") == set()
    assert program.is_kept("kept = ")
