"""What the programs of these tests have in common: a small model with blocks, and their data."""

import argparse
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width + 1)
        self.down = nn.Linear(3 * width + 1, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width: int = 17) -> None:
        super().__init__()
        self.enter = nn.Linear(8, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(3)))
        self.leave = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.blocks(self.enter(x)))


class Scaled(Model):
    """`scale` is a buffer that bfloat16 cannot hold exactly."""

    scale: torch.Tensor

    def __init__(self, batch_norm: bool) -> None:
        super().__init__()
        self.middle = nn.BatchNorm1d(17) if batch_norm else nn.Identity()
        self.register_buffer("scale", torch.linspace(0.7, 1.3, 17))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.middle(self.enter(x)))
        return self.leave((x * self.scale).to(x.dtype))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--strategy", default="FULL_SHARD")
    parser.add_argument("--flat", action="store_true")
    parser.add_argument("--optimizer", default="SGD")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--fault", default="")
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--low", action="store_true", help="compute in bfloat16")
    parser.add_argument("--batch-norm", action="store_true")
    parser.add_argument("--average", action="store_true", help="keep a moving average")
    parser.add_argument("--spawn", action="store_true")
    parser.add_argument("--nproc", type=int, default=2)
    return parser.parse_args()


def launch(main: Callable[[], None]) -> None:
    """Run `main` on every rank: under torchrun as it is, else in processes of its own.

    Forked ones start fastest; `--spawn` starts them with mp.spawn.
    """
    if "RANK" in os.environ:
        main()
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = arguments().nproc
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(ranks))
    if arguments().spawn:
        torch.multiprocessing.spawn(spawned, args=(main,), nprocs=ranks)
        return
    context = multiprocessing.get_context("fork")
    processes = []
    for rank in range(ranks):
        os.environ["RANK"] = str(rank)
        processes.append(context.Process(target=main))
        processes[-1].start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in processes))


def spawned(rank: int, main: Callable[[], None]) -> None:
    os.environ["RANK"] = str(rank)
    main()


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(6, 8, generator=generator)
    return x, torch.randint(5, (6,), generator=generator)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    args: argparse.Namespace,
    average: nn.Module | None = None,
) -> None:
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for step in range(args.steps):
        if step == 2 and dist.get_rank() == 1:
            trouble(args.fault)
        optimizer.zero_grad()
        for _ in range(args.accumulate):
            x, target = batch(generator)
            loss = nn.functional.cross_entropy(model(x), target) / args.accumulate
            if args.fault == "nan" and step == 1:
                loss = loss * float("nan")
            loss.backward()
        if args.clip:
            clip(model, args.clip)
        optimizer.step()
        if average is not None:
            update(average, model, args.fault)
        print(f"step {step + 1} done", flush=True)
    if average is not None:
        whole = get_model_state_dict(average, options=StateDictOptions(full_state_dict=True))
        if dist.get_rank() == 0:
            torch.save(whole, "average.pt")


def update(average: nn.Module, model: nn.Module, fault: str) -> None:
    with torch.no_grad():
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            if fault == "data":  # FSDP2 goes on with what it had
                mean.data = 0.5 * mean.data + 0.5 * parameter.data
            else:
                mean.mul_(0.5).add_(0.5 * parameter)


def clip(model: nn.Module, most: float) -> None:
    """FSDP1 has a method for it; of FSDP2's parameters torch's function takes the global norm."""
    if hasattr(model, "clip_grad_norm_"):
        model.clip_grad_norm_(most)
    else:
        nn.utils.clip_grad_norm_(model.parameters(), most)


def trouble(fault: str) -> None:
    if fault == "crash":
        raise ValueError("no such thing as a third step")
    if fault == "exit":
        raise SystemExit(7)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hang":
        Path(os.environ["HANGS"]).touch()
        time.sleep(600)
