# forms: auto bridge
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def clip(parameters, limit):
    return torch.nn.utils.clip_grad_norm_(parameters, limit)  # FSDP302


model = FSDP(build())
clip(model.parameters(), 1.0)
