import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Monitor:
    def log(self, optimizer):
        for group in optimizer.param_groups:
            for p in group["params"]:
                biggest = p.grad.abs().max()  # FSDP507
                dist.all_reduce(biggest, op=dist.ReduceOp.MAX)  # FSDP525
                print(biggest)


model = FSDP(build())
Monitor().log(torch.optim.SGD(model.parameters()))
