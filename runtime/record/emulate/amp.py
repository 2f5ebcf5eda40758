"""Automatic mixed precision: CUDA's autocast is the CPU's, with CUDA's type where none is named."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .caller import from_program


def install() -> None:
    """Replace the device of `autocast` and `GradScaler`, whatever name they go by.

    The names below `torch.cuda.amp` are subclasses.
    """
    autocast: Any = torch.amp.autocast_mode.autocast
    autocast.__init__ = _autocast(autocast.__init__)
    scaler: Any = torch.amp.grad_scaler.GradScaler
    scaler.__init__ = _scaler(scaler.__init__)
    for name in ("is_autocast_enabled", "get_autocast_dtype"):
        setattr(torch, name, _asked(getattr(torch, name)))
    torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype("cpu")


def _autocast(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if str(device_type).startswith("cuda"):
            device_type, dtype = "cpu", dtype or torch.float16
        original(self, device_type, dtype, *args, **kwargs)

    return init


def _scaler(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        original(self, "cpu" if str(device).startswith("cuda") else device, *args, **kwargs)

    return init


def _asked(original: Callable[..., Any]) -> Callable[..., Any]:
    """Without an argument these functions mean CUDA."""

    @functools.wraps(original)
    def ask(*args: Any) -> Any:
        return original("cpu") if from_program() else original(*args)

    return ask
