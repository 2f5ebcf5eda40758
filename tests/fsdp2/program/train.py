import copy
import os

import torch
import torch.distributed as dist
from checkpoint import norms, save
from model import Net
from sharding import shard
from torch.distributed.fsdp import FSDPModule


def evaluate(model, sample):
    with torch.no_grad():
        loss = model(sample).square().mean()
    if dist.get_rank() == 0:
        print(f"evaluation {loss.item():.3f}")


def main():
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Net()
    if os.path.exists("first.pt"):
        model.load_state_dict(torch.load("first.pt"))
    average = copy.deepcopy(model)
    shard(model, "FULL_SHARD", ranks)
    shard(average, "FULL_SHARD", ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    for _ in range(2):
        for micro in range(2):
            model.set_requires_gradient_sync(micro == 1)
            loss = model(torch.randn(8, 16)).square().mean()
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        print(f"{norm.item():.3f}")
        optimizer.step()
        optimizer.zero_grad()
    sample = torch.randn(4, 16)
    evaluate(model, sample)
    print(isinstance(model, FSDPModule))
    print(norms(model))
    save(model, "last.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
