import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("gloo")
torch.manual_seed(0)
models = [FSDP(nn.Linear(3, 3)) for _ in range(3)]
optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], 0.1)
for _ in range(2):
    x = torch.ones(2, 3)
    for model in models:
        x = model(x)
    optimizer.zero_grad()
    x.sum().backward()
    optimizer.step()
dist.destroy_process_group()
