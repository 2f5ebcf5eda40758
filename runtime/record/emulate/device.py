"""`torch.device`: every CUDA device is the CPU."""

from __future__ import annotations

from typing import Any

import torch

from .standin import stand_in

_Device = torch.device
_CPU = torch.device("cpu")


def install() -> None:
    """Replace `torch.device`, and what sets a device for all that follows."""
    torch.device = stand_in(_Device, _make)  # type: ignore[misc, assignment]
    set_default = torch.set_default_device
    torch.set_default_device = lambda device: set_default(mapped(device))
    set_type = torch.set_default_tensor_type
    torch.set_default_tensor_type = lambda kind: set_type(cpu_type(kind))


def mapped(device: Any) -> Any:
    """What names a device, with the CPU for CUDA: a string, an index, a device or None."""
    if isinstance(device, str):
        return "cpu" if _is_cuda(device) else device
    return _CPU if isinstance(device, int) and not isinstance(device, bool) else device


def cpu_type(kind: Any) -> Any:
    """The name of a tensor type, without `cuda`."""
    return kind.replace("torch.cuda.", "torch.") if isinstance(kind, str) else kind


def _make(*args: Any, **kwargs: Any) -> Any:
    name = args[0] if args else kwargs.get("type", kwargs.get("device", ""))
    return _CPU if mapped(name) is not name else _Device(*args, **kwargs)


def _is_cuda(name: str) -> bool:
    return name == "cuda" or name.startswith("cuda:")
