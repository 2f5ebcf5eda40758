"""Tensors, modules, files, autocast and attention: what is made for CUDA or moved there is made and stays on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils import _device

from .. import imports
from ..patch import Method, around
from .device import Cuda, cpu_type, from_program, mapped


def install() -> None:
    """Replace the factories, and the functions that name a device."""
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
    tensor.device = property(_device_of)
    tensor.record_stream = lambda self, stream: None
    tensor.is_cuda = property(lambda self: from_program() and not self.is_meta)
    moved: tuple[Any, ...] = (tensor, nn.Module, torch.UntypedStorage, torch.TypedStorage)
    for each in moved:
        each.cuda = lambda self, *args, **kwargs: self
    around(nn.Module, "to", _to)
    around(nn.Module, "to_empty", _with_device)
    around(torch._C._nn, "_parse_to", _parsed)
    around(torch, "load", _load)
    # The names below `torch.cuda.amp` are subclasses.
    around(torch.amp.autocast_mode.autocast, "__init__", _autocast)
    around(torch.amp.grad_scaler.GradScaler, "__init__", _scaler)
    around(torch, "is_autocast_enabled get_autocast_dtype", _asked)
    torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype("cpu")
    imports.after("torch.nn.attention", _backends)
    around(torch.backends.cuda, "sdp_kernel", _with_plain_kernel)
    # Scripts would be compiled past the emulation; without, their functions run as Python.
    torch.jit._state.disable()


def _copy_to_cpu(original: Method, self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    # From a device it would be a copy, and what is done to one would not be seen in the other.
    result = original(self, *args, **kwargs)
    if result is self and from_program():
        return result.clone()
    return result


_REAL: Any = torch.Tensor.device


def _device_of(self: torch.Tensor) -> Any:
    # Else a ShardedTensor would look for this property among what it knows.
    with torch._C.DisableTorchFunctionSubclass():
        return _seen(_REAL.__get__(self))


def _seen(device: torch.device) -> Any:
    on_cpu = getattr(device, "type", "") == "cpu"
    if on_cpu and from_program():
        return Cuda(torch.cuda.current_device())
    return device


def _get_device(original: Method, self: torch.Tensor) -> Any:
    if from_program():
        return torch.cuda.current_device()
    return original(self)


def _type(original: Method, self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return original(self, *map(cpu_type, args), **kwargs)


def _to(original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    return _with_device(original, self, *map(mapped, args[:1]), *args[1:], **kwargs)


def _parsed(original: Method, *args: Any, **kwargs: Any) -> Any:
    """Lightning's modules read the arguments of `to` themselves, and keep the device."""
    device, *others = _with_device(original, *map(mapped, args), **kwargs)
    return _seen(device), *others


def _with_device(original: Method, *args: Any, **kwargs: Any) -> Any:
    if "device" in kwargs:
        kwargs["device"] = mapped(kwargs["device"])
    return original(*args, **kwargs)


def _load(original: Method, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Storages of a device are loaded on the CPU; without a `map_location` their file could not be read."""
    if isinstance(map_location, dict):
        map_location = {key: mapped(value) for key, value in map_location.items()}
    elif not callable(map_location):
        map_location = mapped(map_location) or "cpu"
    return original(f, map_location, *args, **kwargs)


def _autocast(
    original: Method, self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any
) -> None:
    """CUDA's autocast is the CPU's, with CUDA's type where none is named."""
    if str(device_type).startswith("cuda"):
        device_type = "cpu"
        dtype = dtype or torch.float16
    original(self, device_type, dtype, *args, **kwargs)


def _scaler(original: Method, self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
    if str(device).startswith("cuda"):
        device = "cpu"
    original(self, device, *args, **kwargs)


def _asked(original: Method, *args: Any) -> Any:
    """Without an argument these functions mean CUDA."""
    if from_program():
        return original("cpu")
    return original(*args)


def _backends(attention: Any) -> None:
    """To a choice of CUDA's kernels for attention the one for every device is added."""

    def sdpa_kernel(original: Method, backends: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(backends, (list, tuple)):
            chosen = list(backends)
        else:
            chosen = [backends]
        return original([*chosen, attention.SDPBackend.MATH], *args, **kwargs)

    around(attention, "sdpa_kernel", sdpa_kernel)


def _with_plain_kernel(original: Method, *args: Any, **kwargs: Any) -> Any:
    return original(*args[:1], **{**kwargs, "enable_math": True})
