import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Trainer:
    def __init__(self, params):
        self.params = params
        self.model = FSDP(build())

    def train(self):
        return self.params.max_steps


Trainer(parse()).train()
