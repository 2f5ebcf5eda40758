"""FSDP2 as its guides have it: shard on meta, then draw random numbers for the shards."""

import torch
import torch.distributed as dist
from late import LateModel, reset
from task import Block, arguments, launch, train
from torch.distributed.fsdp import fully_shard


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    with torch.device("meta"):
        model = LateModel()
    for block in model.blocks:
        assert isinstance(block, Block)
        fully_shard(block)
    fully_shard(model)
    model.to_empty(device="cpu")
    model.apply(reset)
    with torch.no_grad():
        if "buffer" in args.fault:
            model.shift.register_buffer("shift", torch.full((64,), 1e3))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    train(model, optimizer, args)
    dist.destroy_process_group()


if __name__ == "__main__":
    launch(main)
