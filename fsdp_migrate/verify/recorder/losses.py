"""The losses: what each backward starts from, before a gradient scaler has scaled it."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import imports
from .patch import around

_UNSCALED = "_fsdp_migrate_unscaled"


def install(record: Callable[[torch.Tensor], None]) -> None:
    """Call `record` with each scalar that a backward starts from, before it runs.

    `Tensor.backward` looks `torch.autograd.backward` up when it is called. A backward inside a backward (reentrant
    activation checkpointing) starts from no loss; it may run in another thread, therefore the flag is not per thread.
    """
    imports.after("torch.amp.grad_scaler", lambda module: _remember(module.GradScaler))
    for name in ("torch.distributed.fsdp.sharded_grad_scaler", "*.sharded_grad_scaler"):
        imports.after(name, lambda module: _remember(module.ShardedGradScaler))
    running = False

    def backward(original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
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

    around(torch.autograd, "backward", backward)


def _scalars(tensors: Any) -> Iterator[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        tensors = (tensors,)
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.numel() == 1:
            # A distributed tensor's own part: reading the whole would be a collective that the
            # program did not ask for.
            loss = getattr(tensor, _UNSCALED, tensor).detach()
            local = getattr(loss, "_local_tensor", loss)
            if local.numel() == 1:  # else another rank has it
                yield local.reshape(())


def _remember(scaler: Any) -> None:
    """Keep the loss beside its scaled twin, which is fp16 where FSDP1's scaler made it of an fp16 loss, and overflows."""

    def scale(original: Callable[..., Any], self: Any, outputs: Any) -> Any:
        scaled = original(self, outputs)
        if isinstance(outputs, torch.Tensor) and scaled is not outputs:
            setattr(scaled, _UNSCALED, outputs.detach())
        return scaled

    around(scaler, "scale", scale)
