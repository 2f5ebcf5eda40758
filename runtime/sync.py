"""Giving every rank the parameters and buffers of the first one."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from .materialize import own_modules


def broadcast_module_states(
    module: nn.Module,
    process_group: dist.ProcessGroup | None = None,
    *,
    mesh: DeviceMesh | None = None,
    device: torch.device | str | int | None = None,
) -> None:
    """Broadcasts the parameters and buffers of ``module`` from the first rank to the others; called by all of them.

    ``fully_shard`` takes each rank's shard from that rank's own values, so ranks that start from different ones give
    a mixture without any error (torchtitan#1777). This is FSDP1's ``sync_module_states=True`` for a model, or a unit,
    that has not been sharded yet; non-persistent buffers are included, and what units below have is not.

    Args:
        process_group: the ranks; the first of them has the values. None: all ranks.
        mesh: the ranks of several groups, in place of ``process_group``; they communicate on its device.
        device: where to communicate, for a model on the CPU with a backend that cannot send from there.
    """
    own = own_modules(module, ())
    parameters = (p for each in own for p in each.parameters(recurse=False))
    states = dict.fromkeys([*parameters, *(b for each in own for b in each.buffers(recurse=False))])
    if mesh is None:
        broadcast_tensors(states, process_group, device)
    else:
        broadcast_over_mesh(states, mesh, torch.device(mesh.device_type))


def broadcast_over_mesh(
    tensors: Iterable[torch.Tensor], mesh: DeviceMesh, device: torch.device
) -> None:
    """Broadcasts from the first rank of ``mesh`` along its first dimension, then from those ranks along the next."""
    tensors = list(tensors)
    for dim in range(mesh.ndim):
        if mesh.size(dim) > 1:
            broadcast_tensors(tensors, mesh.get_group(dim), device)


def broadcast_tensors(
    tensors: Iterable[torch.Tensor],
    group: dist.ProcessGroup | None,
    device: torch.device | str | int | None = None,
) -> None:
    """Broadcasts ``tensors`` in place from the first rank of ``group``, one at a time: a model on the CPU need not fit on
    ``device`` whole."""
    source = 0 if group is None else dist.get_global_rank(group, 0)
    for tensor in tensors:
        local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
        if local.is_meta:
            raise ValueError(
                "sync_module_states cannot broadcast a tensor on the meta device: materialize the "
                "module first, or pass param_init_fn"
            )
        sent = local.to(device if device is not None else local.device).contiguous()
        dist.broadcast(sent, src=source, group=group)
        if sent.data_ptr() != local.data_ptr():
            local.copy_(sent)
