import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from torch.distributed.tensor import DTensor


def norm_of(model):
    total = 0.0
    for p in model.parameters():
        grad = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
        total += grad.norm() ** 2
    return total


norm_of(FSDP(build()))
