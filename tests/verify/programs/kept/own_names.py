"""A model with a method of its own that `fully_shard` would hide."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 3)

    def reshard(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.reshard(self.body(x))


dist.init_process_group("gloo")
torch.manual_seed(0)
model = FSDP(Model(), use_orig_params=True)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
