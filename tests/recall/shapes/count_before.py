import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def count(model):
    return sum(p.numel() for p in model.parameters())


def main():
    model = build()
    print(count(model))
    model = FSDP(model)
    return model
