"""Runs a program until after its checkpoint, or from its checkpoint on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..fsdp1 import fsdp1_on_cpu

STEPS = 2  # before the checkpoint, and after it


class Training:
    """The training that a program calls once or twice, and its losses by step."""

    def __init__(
        self, batch: Callable[[torch.Generator], tuple[torch.Tensor, ...]], start: int
    ) -> None:
        generator = torch.Generator().manual_seed(100 + dist.get_rank())
        self.batches = [batch(generator) for _ in range(2 * STEPS)]
        self.step = start
        self.losses: dict[int, float] = {}

    def __call__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if self.step == 0:
            change_buffers(model)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(*self.batches[self.step]).float().pow(2).mean()
            loss.backward()
            optimizer.step()
            self.losses[self.step] = loss.item()
            self.step += 1


def change_buffers(model: nn.Module) -> None:
    """So that a checkpoint has to bring them back."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point() and name not in module._non_persistent_buffers_set:
                buffer.add_(0.05)


class Trainer:
    """A library's: code that no migration sees."""

    def save(self, model: nn.Module, path: Path) -> None:
        state = model.state_dict()
        if dist.get_rank() == 0:
            torch.save(state, path)

    def load(self, model: nn.Module, path: Path) -> None:
        model.load_state_dict(torch.load(path))


def run(source: str, batch: Any, folder: Path, resume: bool) -> dict[int, float]:
    """The losses of one run of a program, by step."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(99 if resume else 0)
    training = Training(batch, STEPS if resume else 0)
    names: dict[str, Any] = {}
    exec(compile(source, "program", "exec"), names)
    fsdp1_on_cpu()
    names["run"](training, folder, resume, Trainer())
    names.clear()
    dist.barrier()  # rank 0 has written
    return training.losses
