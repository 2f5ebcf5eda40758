import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def check(model, other):
    for p, q in zip(model.parameters(), other.parameters()):
        assert torch.allclose(p, q)  # FSDP507


check(FSDP(build()), FSDP(build()))
