"""Clipping by the norm of gradients that are spread over ranks."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from .changed import of_parallel_norm
from .gather import current_device, local_shard
from .gradients import as_fsdp1_shows
from .torch_shown import resharded

# The mesh of some parameters and its dimensions that they are sharded over.
Spread = tuple[DeviceMesh, tuple[int, ...]]


@torch.no_grad()
def clip_grad_norm_(
    parameters: nn.Module | torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Scales gradients so that their norm is at most ``max_norm``; returns the norm that they had.

    FSDP1's ``model.clip_grad_norm_(max_norm, norm_type)`` for a sharded module or its parameters. Beyond what
    ``torch.nn.utils.clip_grad_norm_`` does with DTensors, the result is a plain tensor with the same value on every
    rank (with ``norm_type=inf`` torch's is a partial DTensor whose ``item()`` is the rank's own), empty shards are no
    error, parameters on several meshes and plain ones may be mixed, and gradients on the CPU are reduced on the
    mesh's device, so that NCCL is enough.

    As in FSDP1 the norm is computed in float32, and gradients of plain (ignored) parameters count on their own rank
    only: if they differ between ranks, so do the norms. Without any DTensor this is ``torch.nn.utils``'s function.
    Must be called by all ranks. What is no unit and has a method of this name, such as torch's FSDP1, clips itself.
    """
    if not isinstance(parameters, FSDPModule) and hasattr(parameters, "clip_grad_norm_"):
        more = () if norm_type == 2.0 else (norm_type,)
        norm: torch.Tensor = parameters.clip_grad_norm_(max_norm, *more)  # type: ignore[operator]
        return norm
    parameters = _listed(parameters)
    norm_type = float(norm_type)
    of_parallel_norm(parameters)

    # Grouped by parameter, not by gradient: all ranks must make the same calls even if one has no
    # gradient.
    gradients: dict[Spread | None, list[torch.Tensor]] = {}
    for parameter in parameters:
        group = gradients.setdefault(_spread(parameter), [])
        if parameter.grad is not None:
            group.append(as_fsdp1_shows(parameter.grad))
    if gradients.keys() <= {None}:
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)
    everything = [local_shard(gradient) for group in gradients.values() for gradient in group]

    total = _total_norm(gradients, norm_type)
    if everything:
        total = total.to(everything[0].device)
    if error_if_nonfinite and not torch.isfinite(total):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, "
            "so it cannot be clipped. To disable this error and scale the gradients by the "
            "non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    # A coefficient of 1 is multiplied too: to look at it would wait for the device.
    coefficient = torch.clamp(float(max_norm) / (total + 1e-6), max=1.0)
    for gradient in everything:
        gradient.mul_(coefficient.to(gradient.device, gradient.dtype))
    dtypes = [gradient.dtype for gradient in everything] or [torch.float32]
    return total.to(functools.reduce(torch.promote_types, dtypes))


def _listed(parameters: Any) -> list[torch.Tensor]:
    """Those of a module, or of what holds one and answers for it; one alone; or those that are given."""
    if isinstance(parameters, nn.Module):
        resharded(parameters)
    elif isinstance(parameters, torch.Tensor):
        return [parameters]
    return [*(parameters.parameters() if hasattr(parameters, "parameters") else parameters)]


def _total_norm(
    gradients: dict[Spread | None, list[torch.Tensor]], norm_type: float
) -> torch.Tensor:
    """The norm over all ranks, in float32."""
    norms = {spread: _local_norm(group, norm_type) for spread, group in gradients.items()}
    spreads = [spread for spread in norms if spread is not None]
    if norm_type == math.inf:
        total = _stack(norms.values()).max()
        for spread in spreads:
            total = _all_reduce(total, spread, dist.ReduceOp.MAX)
        return total
    powers = [
        _all_reduce(norms[spread] ** norm_type, spread, dist.ReduceOp.SUM) for spread in spreads
    ]
    if None in norms:
        powers.append(norms[None] ** norm_type)
    return _stack(powers).sum() ** (1.0 / norm_type)


def _local_norm(gradients: list[torch.Tensor], norm_type: float) -> torch.Tensor:
    """The norm of this rank's part of ``gradients``; empty parts have none."""
    norms = [
        torch.linalg.vector_norm(part, norm_type, dtype=torch.float32)
        for part in map(local_shard, gradients)
        if part.numel() > 0
    ]
    total: torch.Tensor = torch.linalg.vector_norm(_stack(norms), norm_type)
    return total


def _stack(values: Iterable[torch.Tensor]) -> torch.Tensor:
    """The scalars on the device of the first one; a zero if there are none."""
    values = list(values) or [torch.tensor(0.0)]
    return torch.stack([value.to(values[0].device) for value in values])


def _all_reduce(value: torch.Tensor, spread: Spread, op: dist.ReduceOp.RedOpType) -> torch.Tensor:
    mesh, dims = spread
    value = value.to(current_device(mesh.device_type))
    for dim in dims:
        if mesh.size(dim) > 1:
            dist.all_reduce(value, op=op, group=mesh.get_group(dim))
    return value


def _spread(parameter: torch.Tensor) -> Spread | None:
    if not isinstance(parameter, DTensor):
        return None
    dims = tuple(
        dim for dim, placement in enumerate(parameter.placements) if not placement.is_replicate()
    )
    return parameter.device_mesh, dims
