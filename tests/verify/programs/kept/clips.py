import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = FSDP(nn.Linear(3, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    optimizer.step()
dist.destroy_process_group()
