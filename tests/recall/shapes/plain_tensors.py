import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build())
image = torch.randn(2, 3, requires_grad=True)
image.sum().backward()
print(image.grad.norm(), image.grad[0], image.numel(), image.untyped_storage().size())
print(torch.nonzero(image), image.tolist())
with FSDP.summon_full_params(model):
    print(sum(p.norm() for p in model.parameters()))
