"""Process groups and meshes: NCCL is gloo."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from .. import imports
from .caller import from_program


def install() -> None:
    """Replace what names a backend, or a device of a group."""
    if not dist.is_available():
        return
    from torch.distributed import distributed_c10d

    asked: list[bool] = []
    for name, make in (
        ("init_process_group", functools.partial(_backend, asked)),
        ("new_group", functools.partial(_backend, asked)),
        ("barrier", _without_devices),
        ("get_backend", functools.partial(_told, asked)),
        ("is_nccl_available", _available),
    ):
        replaced = functools.wraps(getattr(dist, name))(make(getattr(dist, name)))
        setattr(dist, name, replaced)
        setattr(distributed_c10d, name, replaced)
    imports.after("torch.distributed.device_mesh", _mesh)


def _backend(asked: list[bool], original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def make(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        named = bound.arguments
        backend = named.get("backend")
        if backend is None or "nccl" in str(backend).lower():
            asked.append(backend is not None)
            # Without a backend, a build with CUDA would look for NCCL's devices.
            named["backend"] = "gloo" if backend or original.__name__ != "new_group" else None
            # Options are NCCL's, and a device is one that there is not.
            named.pop("pg_options", None)
        named.pop("device_id", None)
        return original(*bound.args, **bound.kwargs)

    return make


def _without_devices(original: Callable[..., Any]) -> Callable[..., Any]:
    def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        return original(group, async_op)

    return barrier


def _told(asked: list[bool], original: Callable[..., Any]) -> Callable[..., Any]:
    def get_backend(group: Any = None) -> Any:
        # Programs choose their device by it.
        return dist.Backend("nccl") if from_program() and any(asked) else original(group)

    return get_backend


def _available(original: Callable[..., bool]) -> Callable[..., bool]:
    return lambda: from_program() or original()


def _mesh(module: Any) -> None:
    original = module.DeviceMesh.__init__

    @functools.wraps(original)
    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        original(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    module.DeviceMesh.__init__ = init
