"""Norms of gradients in fp64, and clipping by them.

There the order of a sum shows in the sixteenth digit, and the norm is rounded to the gradients' type afterwards.
FSDP1's method, torch's function and the runtime's then scale by the same factor.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch

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
        if "device" in named:
            return norm.to(named["device"])
        return norm

    around(module, "_get_grad_norm", get_grad_norm)


def _runtime(module: Any) -> None:
    if hasattr(module, "clip_grad_norm_") and hasattr(module, "_local_norm"):
        module._local_norm = lambda gradients, norm_type: _norm(gradients, norm_type)


def _torch(module: Any) -> None:
    clip_grad = module.clip_grad
    around(clip_grad, "_get_total_norm", _total_norm)
    around(clip_grad, "_clip_grads_with_norm_", _scale)
    module.clip_grads_with_norm_ = clip_grad._clip_grads_with_norm_
    module.get_total_norm = _rounded(clip_grad._get_total_norm, lambda tensors: tensors)
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


def _total_norm(original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.nn.utils.get_total_norm` of what is fp64; of DTensors the same on every rank."""
    total = original([_wide(tensor) for tensor in _list(tensors)], *args, **kwargs)
    if not hasattr(total, "redistribute"):
        return total
    from torch.distributed.tensor import Replicate

    return total.redistribute(placements=[Replicate()] * total.device_mesh.ndim)


@torch.no_grad()
def _scale(
    original: Callable[..., None],
    parameters: Any,
    max_norm: float,
    total_norm: Any,
    foreach: Any = None,
) -> None:
    """`torch.nn.utils.clip_grads_with_norm_`, with the factor in each gradient's type, as FSDP1."""
    total = total_norm
    if hasattr(total_norm, "full_tensor"):
        total = total_norm.full_tensor()
    factor = torch.clamp(float(max_norm) / (total + 1e-6), max=1.0)
    for parameter in _list(parameters):
        if parameter.grad is not None:
            gradient = _local(parameter.grad)
            gradient.mul_(factor.to(gradient.device, gradient.dtype))


def _norm(gradients: Iterable[torch.Tensor], norm_type: float) -> torch.Tensor:
    """The norm of what this rank holds; zero if that is nothing."""
    parts = [part for part in map(_local, gradients) if part.numel()]
    norms = [torch.linalg.vector_norm(_wide(part), norm_type) for part in parts]
    if not norms:
        return torch.zeros((), dtype=torch.float64)
    stacked = torch.stack([norm.to(norms[0].device) for norm in norms])
    total: torch.Tensor = torch.linalg.vector_norm(stacked, norm_type)
    return total


def _wide(part: torch.Tensor) -> torch.Tensor:
    part = part.detach()
    if part.is_complex():
        return part.to(torch.complex128)
    return part.to(torch.float64)


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def _list(tensors: Any) -> list[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return list(tensors)
