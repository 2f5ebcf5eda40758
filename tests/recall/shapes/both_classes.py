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


save(FSDP(build()))
