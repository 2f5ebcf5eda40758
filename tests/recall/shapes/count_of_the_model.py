# forms: auto bridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.first = sum(p.numel() for p in self.parameters())

    def size(self):
        return sum(p.numel() for p in self.parameters())  # FSDP507

    def forward(self, x):
        return self.inner(x) / sum(p.numel() for p in self.parameters())


model = FSDP(Net())
print(model.size())
