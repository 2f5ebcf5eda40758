"""Automatic mixed precision: CUDA's autocast is the CPU's, with CUDA's type where none is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..patch import around
from .caller import from_program


def install() -> None:
    """Replace the device of `autocast` and `GradScaler`; the names below `torch.cuda.amp` are subclasses."""
    around(torch.amp.autocast_mode.autocast, "__init__", _autocast)
    around(torch.amp.grad_scaler.GradScaler, "__init__", _scaler)
    around(torch, "is_autocast_enabled get_autocast_dtype", _asked)
    torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype("cpu")


def _autocast(
    original: Callable[..., None], self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any
) -> None:  # fmt: skip
    if str(device_type).startswith("cuda"):
        device_type, dtype = "cpu", dtype or torch.float16
    original(self, device_type, dtype, *args, **kwargs)


def _scaler(
    original: Callable[..., None], self: Any, device: str = "cuda", *args: Any, **kwargs: Any
) -> None:
    original(self, "cpu" if str(device).startswith("cuda") else device, *args, **kwargs)


def _asked(original: Callable[..., Any], *args: Any) -> Any:
    """Without an argument these functions mean CUDA."""
    return original("cpu") if from_program() else original(*args)
