"""Two models in a dataclass, one of them with DDP, by a registry; a trainer with a state dict of its own."""
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

from data import start

FSDP = FullyShardedDataParallel
WRAPPERS = {"fsdp": FSDP}
options = ()
options += (FSDP,)


@dataclass
class Models:
    generator: nn.Module
    critic: nn.Module


class Trainer:
    def __init__(self, rank):
        torch.manual_seed(0)
        wrap = lambda m: WRAPPERS["fsdp"](m, device_id=rank, use_orig_params=True)
        other = torch.nn.parallel.DistributedDataParallel
        self.models = Models(generator=wrap(net()), critic=other(net()))
        self.optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1) for m in self.each()]
        self.steps = 0

    def each(self):
        return self.models.generator, self.models.critic

    def step(self, batch):
        for model, optimizer in zip(self.each(), self.optimizers):
            with model.no_sync():
                model(batch).square().mean().backward()
            loss = model(batch).square().mean()
            loss.backward()
            if isinstance(model, options):
                model.clip_grad_norm_(1.0)
            else:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            raw = model.module if hasattr(model, "module") else model
            print("R", self.steps, loss.item(), type(raw).__name__, [n for n, _ in model.named_parameters()])
        self.steps += 1

    def state_dict(self):
        return {"steps": self.steps, "model": self.models.generator.state_dict()}

    def save(self):
        with FSDP.state_dict_type(self.models.generator, StateDictType.FULL_STATE_DICT):
            return self.state_dict()

    def reload(self):
        model, optimizer = self.models.generator, self.optimizers[0]
        full = FSDP.full_optim_state_dict(model, optimizer)
        sharded = FSDP.scatter_full_optim_state_dict(full, model)
        optimizer.load_state_dict(sharded)
        del full, sharded


def net():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


rank = start()
trainer = Trainer(rank)
batch = torch.randn(3, 4, generator=torch.Generator().manual_seed(rank)).cuda()
trainer.step(batch)
trainer.reload()
trainer.step(batch)
for name, value in trainer.save()["model"].items():
    print("R", name, tuple(value.shape), value.double().sum().item())
dist.destroy_process_group()
