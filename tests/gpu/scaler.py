"""Trains in float16 under FSDP1 with its scaler, and on the bridge with torch's: run by torchrun.

The device is the first argument. Prints the scales of both runs, and how far apart the losses are.
"""

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor

from fsdp_migrate import runtime


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)))


def local_gradient(model: nn.Module) -> torch.Tensor:
    gradient = next(p.grad for p in model.parameters() if p.grad is not None)
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def train(model: nn.Module, scaler: Any, device: torch.device) -> tuple[list[float], list[float]]:
    """The losses and the scales of some steps; in the second step one rank has an infinite gradient in its shard."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses, scales = [], []
    for step in range(8):
        batch = torch.randn(16, 64, generator=generator).to(device)
        loss = model(batch).float().square().mean()
        losses.append(loss.item())
        scaler.scale(loss).backward()
        if step == 1 and dist.get_rank() == 0:
            local_gradient(model).fill_(float("inf"))
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return losses, scales


def main(kind: str) -> None:
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]) if kind == "cuda" else None)
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    low, start = torch.float16, {"init_scale": 2.0**10, "growth_interval": 2}
    theirs = fsdp.FullyShardedDataParallel(
        build(),
        auto_wrap_policy=fsdp.wrap.ModuleWrapPolicy({nn.Sequential}),
        mixed_precision=fsdp.MixedPrecision(low, low),
        device_id=device,
        use_orig_params=True,
    )
    expected = train(theirs, ShardedGradScaler(kind, **start), device)
    ours = runtime.FullyShardedDataParallel(
        build().to(device),
        auto_wrap_policy=runtime.ModuleWrapPolicy({nn.Sequential}),
        mixed_precision=runtime.MixedPrecision(low, low),
    )
    found = train(ours, torch.amp.GradScaler(kind, **start), device)
    apart = max(abs(a - b) / abs(a) for a, b in zip(expected[0], found[0], strict=True))
    if dist.get_rank() == 0:
        print(json.dumps({"apart": apart, "theirs": expected[1], "ours": found[1]}))
    dist.barrier()
    os._exit(0)  # a finished FSDP1 process may abort at interpreter exit


if __name__ == "__main__":
    main(sys.argv[1])
