# forms: auto bridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho):
        self.base_optimizer = base
        super().__init__(params, {"rho": rho})

    def first_step(self):
        norm = torch.norm(torch.stack([
            p.grad.norm(2)  # FSDP507
            for group in self.base_optimizer.param_groups for p in group["params"]
        ]))
        return norm


model = FSDP(build())
SAM(model.parameters(), torch.optim.SGD(model.parameters()), rho=0.05).first_step()
