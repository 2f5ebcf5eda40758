"""Tensors and modules: made on CUDA and moved there, they are made and stay on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _device

from ..patch import around
from .caller import from_program
from .device import cpu_type, mapped


def install() -> None:
    """Replace the factories, and the methods that name a device."""
    tensor: Any = torch.Tensor
    # torch's own list of functions with `device=`, asked for before they are replaced: a
    # `with torch.device(...)` compares with it.
    known = {function.__name__ for function in _device._device_constructors()}
    likes = {name for name in dir(torch) if name.endswith("_like")}
    around(torch, " ".join(known | likes), _with_device)
    around(tensor, "new_tensor new_empty new_full new_ones new_zeros", _with_device)
    around(tensor, "to", _to)
    around(tensor, "type", _type)
    around(tensor, "cpu", _copy_to_cpu)
    around(tensor, "get_device", _get_device)
    tensor.cuda = lambda self, *args, **kwargs: self
    tensor.record_stream = lambda self, stream: None
    tensor.is_cuda = property(lambda self: from_program() and not self.is_meta)
    storages: tuple[Any, ...] = (torch.UntypedStorage, torch.TypedStorage)
    for storage in storages:
        storage.cuda = lambda self, *args, **kwargs: self
    module: Any = nn.Module
    around(module, "to", _to)
    around(module, "to_empty", _with_device)
    module.cuda = lambda self, device=None: self


Method = Callable[..., Any]


def _copy_to_cpu(original: Method, self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    # From a device it would be a copy, and what is done to one would not be seen in the other.
    result = original(self, *args, **kwargs)
    return result.clone() if result is self and from_program() else result


def _get_device(original: Method, self: torch.Tensor) -> Any:
    return torch.cuda.current_device() if from_program() else original(self)


def _type(original: Method, self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return original(self, *map(cpu_type, args), **kwargs)


def _to(original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    return _with_device(original, self, *map(mapped, args[:1]), *args[1:], **kwargs)


def _with_device(original: Method, *args: Any, **kwargs: Any) -> Any:
    if "device" in kwargs:
        kwargs["device"] = mapped(kwargs["device"])
    return original(*args, **kwargs)
