"""`torch.load`: storages of a device are loaded on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..patch import around
from .device import mapped


def install() -> None:
    """Replace `map_location`; without one a file of CUDA tensors could not be read."""
    around(torch, "load", _load)


def _load(
    original: Callable[..., Any], f: Any, map_location: Any = None, *args: Any, **kwargs: Any
) -> Any:
    if isinstance(map_location, dict):
        map_location = {key: mapped(value) for key, value in map_location.items()}
    elif not callable(map_location):
        map_location = mapped(map_location) or "cpu"
    return original(f, map_location, *args, **kwargs)
