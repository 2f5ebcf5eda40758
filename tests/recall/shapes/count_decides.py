import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def count(model):
    return sum(p.numel() for p in model.parameters())  # FSDP507


model = FSDP(build())
optimizer = torch.optim.SGD(model.parameters(), lr=1.0 / count(model))
