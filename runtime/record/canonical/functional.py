"""Functional collectives, which DTensor reduces with: they reach their group past `ProcessGroup`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..patch import around
from .collectives import scatter_sum


def install() -> None:
    """Have the functional reductions of a tensor outside autograd call the group's own."""
    if not dist.is_available():
        return
    from torch.distributed import _functional_collectives as functional

    around(functional, "all_reduce", _all_reduce)
    around(functional, "reduce_scatter_single reduce_scatter_tensor", _reduce_scatter)


def _all_reduce(
    original: Callable[..., Any], self: torch.Tensor, reduceOp: str, group: Any, tag: str = ""
) -> Any:
    if not _can(self, reduceOp):
        return original(self, reduceOp, group, tag)
    from torch.distributed import distributed_c10d

    result = self.detach().clone(memory_format=torch.contiguous_format)
    distributed_c10d.all_reduce(result, _operation(reduceOp), _group(group, tag))
    return result


def _reduce_scatter(
    original: Callable[..., Any],
    self: torch.Tensor,
    reduceOp: str,
    scatter_dim: int,
    group: Any,
    tag: str = "",
) -> Any:
    members = _group(group, tag)
    if not _can(self, reduceOp) or self.size(scatter_dim) % members.size():
        return original(self, reduceOp, scatter_dim, group, tag)
    parts = self.detach().chunk(members.size(), scatter_dim)
    result = torch.empty_like(parts[0], memory_format=torch.contiguous_format)
    scatter_sum(members, result, torch.stack(parts), _operation(reduceOp))
    return result


def _can(tensor: torch.Tensor, operation: str) -> bool:
    plain = type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
    return (
        plain
        and operation.lower() in ("sum", "avg")
        and tensor.is_floating_point()
        and not (torch.is_grad_enabled() and tensor.requires_grad)
        and not torch.compiler.is_compiling()
    )


def _operation(name: str) -> Any:
    return getattr(dist.ReduceOp, name.upper())


def _group(group: Any, tag: str) -> Any:
    from torch.distributed import _functional_collectives, distributed_c10d

    functional: Any = _functional_collectives
    groups: Any = distributed_c10d
    resolve = getattr(functional, "_resolve_group", None) or functional._resolve_group_name
    found = resolve(group, tag)
    return found if isinstance(found, dist.ProcessGroup) else groups._resolve_process_group(found)
