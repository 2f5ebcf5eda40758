# forms: auto bridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def watch(model, token):
    grad = model.embed.weight.grad
    print(grad[token])  # FSDP507


model = FSDP(build())
watch(model, 3)
