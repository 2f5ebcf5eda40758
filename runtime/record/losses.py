"""The losses: what each backward starts from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch


def install(record: Callable[[torch.Tensor], None]) -> None:
    """Call `record` with each scalar that a backward starts from, before it runs.

    `Tensor.backward` looks `torch.autograd.backward` up when it is called, so one function is
    enough. A backward inside a backward (reentrant activation checkpointing) starts from no loss.
    It may run in another thread than the outer one, therefore the flag is not per thread.
    """
    original = torch.autograd.backward
    running = False

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal running
        if running:
            return original(tensors, *args, **kwargs)
        for loss in _scalars(tensors):
            record(loss)
        running = True
        try:
            return original(tensors, *args, **kwargs)
        finally:
            running = False

    torch.autograd.backward = backward


def _scalars(tensors: Any) -> Iterator[torch.Tensor]:
    for tensor in (tensors,) if isinstance(tensors, torch.Tensor) else tensors:
        if isinstance(tensor, torch.Tensor) and tensor.numel() == 1:
            # A distributed tensor's own part: reading the whole would be a collective that the
            # program did not ask for.
            yield getattr(tensor.detach(), "_local_tensor", tensor.detach())
