"""A policy that names the class of the model itself: the model is sharded once, behind its units."""

from pathlib import Path

import pytest

from .programs import analysed

HEAD = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))


class Wide(Net):
    pass


"""


@pytest.mark.parametrize("form", ["auto", "torch"])
@pytest.mark.parametrize(
    ("code", "is_left_out"),
    [
        ("model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Net, Block}))", True),
        ("net = Net().cuda()\nmodel = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Block, Net}))", True),
        ("model = FSDP(Wide(), auto_wrap_policy=ModuleWrapPolicy({Net, Block}))", True),
        (
            "net = Net.from_pretrained('x')\n"
            "model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Net, Block}))",
            True,
        ),
        (
            "def shard(net):\n    return FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Net}))\n"
            "model = shard(Net())",
            True,
        ),
        ("net = Net()\nmodel = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Block}))", False),
        ("model = FSDP(load(), auto_wrap_policy=ModuleWrapPolicy({Block}))", False),
        (
            "net = nn.Sequential(*[Block() for _ in range(2)], Block())\n"
            "model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Block}))",
            False,
        ),
    ],
)  # fmt: skip
def test_the_model_is_no_unit_twice(
    code: str, is_left_out: bool, form: str, tmp_path: Path
) -> None:
    after = analysed(tmp_path, f"{HEAD}{code}\n", form).after["train.py"]
    assert ".modules())[1:]):" in after if is_left_out else ".modules())):" in after
