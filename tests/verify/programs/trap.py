"""FSDP1: synchronised weights, accumulation under no_sync, clipping; `--low` is mixed precision, buffers too."""

import contextlib

import torch
import torch.distributed as dist
from task import Block, Scaled, arguments, batch, launch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())  # only the first rank's weights count
    low = MixedPrecision(torch.bfloat16, torch.float32, buffer_dtype=torch.bfloat16)
    model = FSDP(
        Scaled(args.batch_norm),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
        sync_module_states=True,
        mixed_precision=low if args.low else None,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(args.steps):
        optimizer.zero_grad()
        for micro in range(args.accumulate):
            last = micro == args.accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                x, target = batch(generator)
                loss = nn.functional.cross_entropy(model(x).float(), target) / args.accumulate
                loss.backward()
        if args.clip:
            model.clip_grad_norm_(args.clip)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    launch(main)
