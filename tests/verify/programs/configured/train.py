"""A model whose sharding comes from the command line."""

import argparse
import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.tanh(self.inner(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.blocks(x))


def make_policy(options):
    return functools.partial(size_based_auto_wrap_policy, min_num_params=options.least)


def sharding(options):
    return {"sharding_strategy": ShardingStrategy[options.strategy], "forward_prefetch": True}


def depth(model):
    return len(model.module.blocks)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="SHARD_GRAD_OP")
    parser.add_argument("--least", type=int, default=60)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Net()
    model = FSDP(
        model,
        auto_wrap_policy=make_policy(args),
        device_id=torch.device("cpu"),
        use_orig_params=True,
        **sharding(args),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    other = nn.ModuleDict({"module": nn.Identity()})
    for _ in range(depth(model) + len([other.module])):
        x = torch.randn(4, 8, generator=generator)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
