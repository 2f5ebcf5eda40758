"""A model with a part that no forward uses, its teacher, and a reference, all sharded."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.aux = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = FSDP(Model(), use_orig_params=True)
teacher = FSDP(Model(), use_orig_params=True)
reference = FSDP(nn.Linear(4, 4), use_orig_params=True)
optimizer = torch.optim.AdamW([*model.parameters(), *reference.parameters()], 0.1)
width = model.module.body.in_features
for _ in range(3):
    optimizer.zero_grad()
    reference(model(torch.randn(2, width))).sum().backward()
    optimizer.step()
    with torch.no_grad():
        for mean, parameter in zip(teacher.parameters(), model.parameters(), strict=True):
            mean.lerp_(parameter, 0.5)
torch.save(model.state_dict(), f"model-{dist.get_rank()}.pt")
dist.destroy_process_group()
