"""Norms of gradients in fp64, and clipping by them.

A norm adds the squares of all elements, each rank those that it holds. In fp64 the order of that
sum shows in the sixteenth digit; the norm is rounded to the gradients' type afterwards, and only
once in some hundred million would that show the difference. FSDP1's method, torch's function and
the runtime's then scale by the same factor.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from .. import imports
from ..patch import around


def install() -> None:
    """Arrange for each of the three to be replaced when its module is imported."""
    imports.after("torch.nn.utils", _torch)
    imports.after("torch.distributed.fsdp.fully_sharded_data_parallel", _fsdp1)
    # The runtime's module has another name in a repository that it was copied into.
    imports.after("*.clip", _runtime)


def _fsdp1(module: Any) -> None:
    # FSDP1 adds up over the ranks what this returns, and continues in its precision.
    def get_grad_norm(original: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        named = inspect.signature(original).bind(*args, **kwargs).arguments
        gradients = [p.grad for p in named["params"] if p.grad is not None]
        norm = _norm(gradients, float(named["norm_type"]))
        return norm.to(named["device"]) if "device" in named else norm

    around(module, "_get_grad_norm", get_grad_norm)


def _runtime(module: Any) -> None:
    if hasattr(module, "clip_grad_norm_") and hasattr(module, "_local_norm"):
        module._local_norm = lambda gradients, norm_type: _norm(gradients, norm_type)


def _torch(module: Any) -> None:
    clip_grad = module.clip_grad
    if not hasattr(clip_grad, "_get_total_norm"):
        return
    clip_grad._get_total_norm = _total_norm
    clip_grad._clip_grads_with_norm_ = module.clip_grads_with_norm_ = _scale
    module.get_total_norm = _rounded(_total_norm, lambda tensors: _list(tensors))
    clip_grad.clip_grad_norm_ = module.clip_grad_norm_ = _rounded(
        clip_grad.clip_grad_norm_,
        lambda parameters: [p.grad for p in parameters if p.grad is not None],
    )


def _rounded(
    function: Callable[..., Any], gradients: Callable[[list[torch.Tensor]], list[torch.Tensor]]
) -> Callable[..., Any]:
    """The function with its fp64 result in the dtype of the gradients, as torch returns it."""

    @functools.wraps(function)
    def rounded(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = _list(tensors)
        dtypes = [gradient.dtype for gradient in gradients(tensors)] or [torch.float32]
        result = function(tensors, *args, **kwargs)
        return result.to(functools.reduce(torch.promote_types, dtypes))

    return rounded


@torch.no_grad()
def _total_norm(
    tensors: Any,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Any:
    """`torch.nn.utils.get_total_norm` in fp64."""
    tensors, norm_type = _list(tensors), float(norm_type)
    if not tensors:
        return torch.tensor(0.0)
    groups: dict[tuple[Any, tuple[int, ...]], list[torch.Tensor]] = {}
    for tensor in map(_reduced, tensors):
        groups.setdefault(_spread(tensor), []).append(tensor)
    norms = [
        _over_ranks(_norm(group, norm_type), mesh, dimensions, norm_type)
        for (mesh, dimensions), group in groups.items()
    ]
    total = _combine(norms, norm_type).to(tensors[0].device)
    if error_if_nonfinite and not torch.isfinite(total):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, "
            "so it cannot be clipped. To disable this error and scale the gradients by the "
            "non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    first: Any = tensors[0]
    if not hasattr(first, "_local_tensor"):
        return total
    from torch.distributed.tensor import DTensor, Replicate

    mesh = first.device_mesh
    return DTensor.from_local(total, mesh, [Replicate()] * mesh.ndim, run_check=False)


@torch.no_grad()
def _scale(parameters: Any, max_norm: float, total_norm: Any, foreach: bool | None = None) -> None:
    """`torch.nn.utils.clip_grads_with_norm_`, with the factor in each gradient's type, as FSDP1."""
    total = total_norm.full_tensor() if hasattr(total_norm, "full_tensor") else total_norm
    factor = torch.clamp(float(max_norm) / (total + 1e-6), max=1.0)
    for parameter in _list(parameters):
        if parameter.grad is not None:
            gradient = _local(parameter.grad)
            gradient.mul_(factor.to(gradient.device, gradient.dtype))


def _norm(gradients: Iterable[torch.Tensor], norm_type: float) -> torch.Tensor:
    """The norm of what this rank holds; zero if that is nothing."""
    parts = [part for part in map(_local, gradients) if part.numel()]
    norms = [torch.linalg.vector_norm(_wide(part), norm_type) for part in parts]
    return _combine(norms, norm_type)


def _combine(norms: list[torch.Tensor], norm_type: float) -> torch.Tensor:
    if not norms:
        return torch.zeros((), dtype=torch.float64)
    if len(norms) == 1:
        return norms[0]
    stacked = torch.stack([norm.to(norms[0].device) for norm in norms])
    combined: torch.Tensor = torch.linalg.vector_norm(stacked, norm_type)
    return combined


def _wide(part: torch.Tensor) -> torch.Tensor:
    part = part.detach()
    return part.to(torch.complex128 if part.is_complex() else torch.float64)


def _over_ranks(
    norm: torch.Tensor, mesh: Any, dimensions: tuple[int, ...], norm_type: float
) -> torch.Tensor:
    if not dimensions:
        return norm
    # Not by way of `torch.distributed`, where the program's own calls are counted.
    from torch.distributed import distributed_c10d

    infinite = math.isinf(norm_type)
    value = norm.clone() if infinite else norm**norm_type
    # Gradients may be offloaded, and their group may know the mesh's devices only.
    value = value.to(mesh.device_type)
    for dimension in dimensions:
        operation = dist.ReduceOp.MAX if infinite else dist.ReduceOp.SUM
        distributed_c10d.all_reduce(value, operation, mesh.get_group(dimension))
    result: torch.Tensor = value if infinite else value ** (1.0 / norm_type)
    return result.to(norm.device)


def _reduced(tensor: Any) -> Any:
    partial = any(placement.is_partial() for placement in getattr(tensor, "placements", ()))
    return tensor.full_tensor() if partial else tensor


def _spread(tensor: Any) -> tuple[Any, tuple[int, ...]]:
    """The mesh of a gradient and the dimensions that it is sharded over."""
    if not hasattr(tensor, "_local_tensor"):
        return None, ()
    sharded = [n for n, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    return tensor.device_mesh, tuple(sharded)


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def _list(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
