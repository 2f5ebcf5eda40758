"""FSDP1 in mixed precision: buffers in bfloat16, BatchNorm in single precision."""

import torch
import torch.distributed as dist
from parts import Block, Model, arguments, batch, launch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(
        Model(batch_norm=args.batch_norm),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=MixedPrecision(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16
        ),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(args.steps):
        optimizer.zero_grad()
        x, target = batch(generator)
        loss = nn.functional.cross_entropy(model(x).float(), target)
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    launch(main)
