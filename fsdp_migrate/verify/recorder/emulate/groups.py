"""Process groups and meshes: NCCL is gloo."""

from __future__ import annotations

import inspect
from typing import Any

import torch.distributed as dist

from .. import imports
from ..patch import Method, around
from .device import from_program

_FLAT = "_allgather_base all_gather_single _reduce_scatter_base reduce_scatter_single"


def install() -> None:
    """Replace what names a backend, or a device of a group."""
    if not dist.is_available():
        return
    from torch.distributed import distributed_c10d

    _name_gloo()
    around(dist.ProcessGroup, _FLAT, _flat)
    for name in ("init_process_group", "new_group", "barrier", "get_backend", "is_nccl_available"):
        setattr(distributed_c10d, name, getattr(dist, name))
    imports.after("torch.distributed.device_mesh", _mesh)
    imports.after("torch.nn.parallel.distributed", _replicated)


def _name_gloo() -> None:
    """Make groups with gloo where a program names NCCL, and tell it that they are NCCL's."""
    asked: list[bool] = []

    def make(original: Method, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(original).bind(*args, **kwargs)
        named = bound.arguments
        backend = named.get("backend")
        if backend is None or "nccl" in str(backend).lower():
            asked.append(backend is not None)
            # Without a backend, a build with CUDA would look for NCCL's devices.
            if backend or original.__name__ != "new_group":
                named["backend"] = "gloo"
            else:
                named["backend"] = None
            # Options are NCCL's, and a device is one that there is not.
            named.pop("pg_options", None)
        named.pop("device_id", None)
        return original(*bound.args, **bound.kwargs)

    def barrier(
        original: Method, group: Any = None, async_op: bool = False, device_ids: Any = None
    ) -> Any:
        return original(group, async_op)

    def get_backend(original: Method, group: Any = None) -> Any:
        # Programs choose their device by it.
        if from_program() and any(asked):
            return dist.Backend("nccl")
        return original(group)

    def is_nccl_available(original: Method) -> bool:
        return from_program() or original()

    around(dist, "init_process_group new_group", make)
    for function in (barrier, get_backend, is_nccl_available):
        around(dist, function.__name__, function)


def _flat(original: Method, group: Any, output: Any, tensor: Any, *args: Any, **how: Any) -> Any:
    # NCCL takes any shapes with enough elements, gloo those of a concatenation.
    return original(group, output.view(-1), tensor.reshape(-1), *args, **how)


def _replicated(module: Any) -> None:
    def init(
        original: Method,
        self: Any,
        model: Any,
        device_ids: Any = None,
        output_device: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        # Devices are for a model on CUDA alone.
        original(self, model, None, None, *args, **kwargs)

    around(module.DistributedDataParallel, "__init__", init)


def _mesh(module: Any) -> None:
    def init(original: Method, self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type = "cpu"
        original(self, device_type, *args, **kwargs)

    around(module.DeviceMesh, "__init__", init)
