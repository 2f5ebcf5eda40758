import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from data import batches, start
from model import Block, Net

counts = {"applied": 0}


def fill(model):
    for name, module in model.named_modules():
        if not isinstance(module, FSDP):
            continue
        for param in module.parameters():
            param.data.fill_(0.1)


def count(module):
    if not isinstance(module, FSDP):
        return
    counts["applied"] += 1


def halve(module):
    if isinstance(module, FSDP):
        for param in module.parameters():
            param.data.mul_(0.5)
        return
    for child in module.children():
        halve(child)


def names(module, seen):
    if not isinstance(module, FSDP):
        seen.append(isinstance(module, Block))
    for child in module.children():
        names(child, seen)


rank = start()
model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=rank, use_orig_params=True)
fill(model)
model.apply(count)
inner = [m for m in model.modules() if not isinstance(m, FSDP)]
seen = []
names(model, seen)
print("R modules", counts, len(inner), sum(seen), len(seen))
for child in model.children():
    halve(child)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step, x in enumerate(batches(rank)):
    loss = model(x, x)
    loss.backward()
    opt.step()
    opt.zero_grad()
    print("R", step, loss.item())
dist.destroy_process_group()
