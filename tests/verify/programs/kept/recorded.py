import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from vendored.in_place import did, like_fsdp1

dist.init_process_group("gloo")
torch.manual_seed(0)
models = [nn.Linear(3, 3) for _ in range(3)]
for model in models[:2]:
    with like_fsdp1(model, class_names=False):
        fully_shard(model)
with like_fsdp1(models[2]):
    fully_shard(models[2])
did(0, "zero_gradients", 2 + dist.get_rank(), f"weight.{dist.get_rank()}")
if dist.get_rank() == 1:
    did(1, "zero_gradients", 1, "bias")
    did(1, "interface", 1, "no_sync")
optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], 0.1)
for _ in range(2):
    x = torch.ones(2, 3)
    for model in models:
        x = model(x)
    optimizer.zero_grad()
    x.sum().backward()
    optimizer.step()
dist.destroy_process_group()
