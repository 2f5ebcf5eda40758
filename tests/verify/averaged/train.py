"""A moving average that no optimizer has, and two models that are trained in turn."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(net: nn.Module) -> nn.Module:
    return FSDP(net, use_orig_params=True)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    other = nn.Linear(4, 4)
    average = shard(copy.deepcopy(net))
    model, other = shard(net), shard(other)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, other)]
    for step in range(3):
        x = torch.full((2, 4), 1.0 + step + dist.get_rank())
        for each, optimizer in zip((model, other), optimizers, strict=True):
            optimizer.zero_grad()
            each(x).pow(2).mean().backward()
            optimizer.step()
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            mean.data = 0.5 * mean.data + 0.5 * parameter.data


if __name__ == "__main__":
    main()
