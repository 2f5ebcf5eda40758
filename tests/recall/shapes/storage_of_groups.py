# forms: auto bridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Optimizer:
    def __init__(self, optim):
        self.optim = optim
        self.whole, self.names = dict(), dict()
        for index, group in enumerate(self.optim.param_groups):
            params = group["params"]
            self.whole[index] = params
            self.names[index] = group["name"]

    def step(self):
        for index in range(len(self.whole)):
            used = [p for p in self.whole[index] if p.untyped_storage().size() != 0]  # FSDP507
            print(len(used), [len(name) for name in self.names[index]])  # FSDP529
        for index, params in self.whole.items():
            for p in params:
                print(p.untyped_storage().size())  # FSDP507

    def state_dict(self):
        states = self.optim.state_dict()  # FSDP336
        return {"optim": states}


class Handed:
    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, states):
        self.optimizer.load_state_dict(states)


model = FSDP(build())
Optimizer(torch.optim.AdamW(model.parameters())).step()
