"""Calls whose literal arguments do not lead to the sharding in the function that they call."""

from pathlib import Path

import pytest

from .programs import analysed

BUILD = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net


class Factory:
    def build(self, world_size, local=False):
        model = Net()
        if world_size > 1 and not local:
            model = FSDP(model)
        else:
            model = model.cuda()
        return model.eval()
"""
TRAIN = """\
import torch

from build import Factory

model = Factory().build(GIVEN).train()
optimizer = torch.optim.AdamW(model.parameters())
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""


@pytest.mark.parametrize(
    ("given", "is_sharded"),
    [
        ("world_size=1", False),
        ("1", False),
        ("2", True),
        ("world_size=size", True),
        ("size, local=True", False),
        ("2, local=False", True),
        ("1 if quick else size", True),
    ],
)
@pytest.mark.parametrize("form", ["auto", "torch"])
def test_a_model_of_one_process(form: str, given: str, is_sharded: bool, tmp_path: Path) -> None:
    files = {"build.py": BUILD, "train.py": TRAIN.replace("GIVEN", given)}
    assert ("FSDP302" in analysed(tmp_path, files, form).codes("clip_grad")) is is_sharded
