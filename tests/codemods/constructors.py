"""Programs that have one constructor behind the same imports."""

HEAD = """\
import torch
import torch.nn as nn
from functools import partial
from model import Block, Net
from torch.distributed.fsdp import (
    BackwardPrefetch, CPUOffload, FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy
)
from torch.distributed.fsdp.wrap import (
    ModuleWrapPolicy, lambda_auto_wrap_policy, transformer_auto_wrap_policy
)
from torch.distributed.device_mesh import init_device_mesh


class Seen(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(8, 8))

    def forward(self, x):
        return self.a(x)


model = Net()
"""


def without_imports(text: str) -> str:
    """What a program becomes, without the head and the comment at the line with `like_fsdp1`."""
    lines = text.partition("model = Net()\n")[2].splitlines(keepends=True)
    return "".join(line for line in lines if "# Keeps FSDP1's behaviour" not in line)
