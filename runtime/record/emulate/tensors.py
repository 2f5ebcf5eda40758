"""Tensors and modules: made on CUDA and moved there, they are made and stay on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _device

from .caller import from_program
from .device import cpu_type, mapped


def install() -> None:
    """Replace the factories, and the methods that name a device."""
    _factories()
    _methods()
    _modules()


def _factories() -> None:
    # torch's own list of functions with `device=`, asked for before they are replaced: a
    # `with torch.device(...)` compares with it.
    known = {function.__name__ for function in _device._device_constructors()}
    likes = {name for name in dir(torch) if name.endswith("_like")}
    for name in known | likes:
        if hasattr(torch, name):
            _replace(torch, name, _with_device)
    for name in ("new_tensor", "new_empty", "new_full", "new_ones", "new_zeros"):
        _replace(torch.Tensor, name, _with_device)


def _methods() -> None:
    tensor: Any = torch.Tensor
    _replace(tensor, "to", _to)
    _replace(tensor, "type", lambda original: lambda self, *args, **kwargs: original(
        self, *(cpu_type(arg) for arg in args), **kwargs
    ))  # fmt: skip
    tensor.cuda = lambda self, *args, **kwargs: self
    tensor.record_stream = lambda self, stream: None
    _replace(tensor, "cpu", _copy_to_cpu)
    tensor.is_cuda = property(lambda self: from_program() and not self.is_meta)
    _replace(tensor, "get_device", lambda original: lambda self: (
        torch.cuda.current_device() if from_program() else original(self)
    ))  # fmt: skip
    storages: tuple[Any, ...] = (torch.UntypedStorage, torch.TypedStorage)
    for storage in storages:
        storage.cuda = lambda self, *args, **kwargs: self


def _modules() -> None:
    module: Any = nn.Module
    _replace(module, "to", _to)
    _replace(module, "to_empty", _with_device)
    module.cuda = lambda self, device=None: self


def _copy_to_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    def cpu(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # From a device it would be a copy, and what is done to one would not be seen in the other.
        result = original(self, *args, **kwargs)
        return result.clone() if result is self and from_program() else result

    return cpu


def _to(original: Callable[..., Any]) -> Callable[..., Any]:
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        args = tuple(mapped(arg) if index == 0 else arg for index, arg in enumerate(args))
        if "device" in kwargs:
            kwargs["device"] = mapped(kwargs["device"])
        return original(self, *args, **kwargs)

    return to


def _with_device(original: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = mapped(kwargs["device"])
        return original(*args, **kwargs)

    return make


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, functools.wraps(original)(make(original)))
