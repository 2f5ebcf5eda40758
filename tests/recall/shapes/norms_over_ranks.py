import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def total_norm(gradients):
    total = torch.tensor(0.0)
    for grad in gradients:
        total += grad.norm(2) ** 2  # FSDP508
    dist.all_reduce(total)  # FSDP525
    return total.sqrt()


model = FSDP(build())
total_norm([p.grad for p in model.parameters()])
