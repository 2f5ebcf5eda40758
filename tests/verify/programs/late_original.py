"""FSDP1 builds the model unit by unit, from whole parameters."""

import torch
import torch.distributed as dist
from late import LateModel, reset
from task import Block, arguments, launch, train
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def init(module: nn.Module) -> None:
    module.to_empty(device="cpu", recurse=False)
    reset(module)


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    with torch.device("meta"):
        model = LateModel()
    model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), param_init_fn=init)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    train(model, optimizer, args)
    dist.destroy_process_group()


if __name__ == "__main__":
    launch(main)
