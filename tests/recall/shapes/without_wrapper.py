import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Outer(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model


def inner(model):
    return model.model if isinstance(model, Outer) else model  # FSDP526


def summoned(model):
    for m in model.modules():
        if isinstance(m, FSDP):
            setattr(m, "forward", m.module.__call__)  # FSDP526


model = FSDP(Outer(build()))
inner(model)
summoned(model)
