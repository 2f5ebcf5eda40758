import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Strategy:
    wrapper = FSDP  # FSDP018

    def wrap(self, model):
        return self.wrapper(model)
