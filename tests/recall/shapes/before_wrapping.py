import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def groups(model):
    return [p for p in model.parameters() if p.ndim <= 1]


def main():
    model = nn.Linear(8, 8)
    first = groups(model)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return FSDP(model), first
