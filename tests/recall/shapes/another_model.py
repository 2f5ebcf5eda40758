import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class GAN:
    def __init__(self):
        self.generator = FSDP(build())
        self.discriminator = nn.Linear(8, 1)

    def step(self, loss, batch):
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.discriminator.parameters(), 1.0)
        print(batch.norm(), loss.mean(), sum(p.grad.norm() for p in self.discriminator.parameters()))
        rows = batch[3]
        if torch.isnan(loss).any() or batch.ndim <= 1:
            return torch.allclose(batch, rows)
