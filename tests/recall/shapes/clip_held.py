# forms: auto bridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Wrapped:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.clip = torch.nn.utils.clip_grad_norm_

    def step(self):
        for group in self.optimizer.param_groups:
            self.clip(group["params"], 1.0)  # FSDP302


model = FSDP(build())
model = torch.compile(model)
Wrapped(torch.optim.AdamW(model.parameters())).step()
if isinstance(model, FSDP):
    model.clip_grad_norm_(1.0)
else:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # FSDP302
