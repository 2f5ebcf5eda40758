# forms: auto bridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build())
bad = torch.zeros((), dtype=torch.int64)
for p in model.parameters():
    bad += (~torch.isfinite(p.grad)).sum()  # FSDP507
    if torch.isnan(p.grad).any():  # FSDP507
        print("nan")
    found = torch.nonzero(p.grad)  # FSDP507
