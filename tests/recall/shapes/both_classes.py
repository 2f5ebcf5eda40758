# forms: auto bridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from torch.distributed.fsdp import FSDPModule


def save(model):
    if isinstance(model, FSDPModule):  # FSDP007
        return model.state_dict()
    elif isinstance(model, FSDP):
        return FSDP.optim_state_dict(model, None)
    return None


def is_second(model):
    return isinstance(model, FSDPModule)  # FSDP007


def version(model):
    if isinstance(model, FSDP):
        return 1
    return 2 if isinstance(model, FSDPModule) else 0


save(FSDP(build()))
