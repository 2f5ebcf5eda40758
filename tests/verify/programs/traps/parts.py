"""What the programs of the traps have in common: a model with a buffer, its data, its ranks."""

import argparse
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    """A few blocks; `scale` is a buffer that bfloat16 cannot hold exactly."""

    scale: torch.Tensor

    def __init__(self, width: int = 16, batch_norm: bool = False) -> None:
        super().__init__()
        self.enter = nn.Linear(8, width)
        self.middle = nn.BatchNorm1d(width) if batch_norm else nn.Identity()
        self.blocks = nn.Sequential(*(Block(width) for _ in range(2)))
        self.leave = nn.Linear(width, 5)
        self.register_buffer("scale", torch.linspace(0.7, 1.3, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.middle(self.enter(x)))
        return self.leave((x * self.scale).to(x.dtype))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--batch-norm", action="store_true")
    parser.add_argument("--low", action="store_true", help="compute in bfloat16")
    return parser.parse_args()


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(6, 8, generator=generator)
    return x, torch.randint(5, (6,), generator=generator)


def launch(main: Callable[[], None], ranks: int = 2) -> None:
    """Run `main` on every rank, in forked processes, which start faster than torchrun's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(ranks))
    context = multiprocessing.get_context("fork")
    processes = []
    for rank in range(ranks):
        os.environ["RANK"] = str(rank)
        processes.append(context.Process(target=main))
        processes[-1].start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in processes))
