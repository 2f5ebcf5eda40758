"""The values of a unit before it is sharded: materialized from the meta device, unit by unit as FSDP1 does, and broadcast.

With the same order and the same full-size tensors the random numbers are the same too
(``torch/distributed/fsdp/_init_utils.py``, ``_materialize_meta_module``).
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def own_modules(unit: nn.Module, boundaries: Collection[nn.Module]) -> list[nn.Module]:
    """The modules of ``unit``, breadth first, up to ``boundaries`` and modules sharded before."""
    modules = []
    queue = deque([unit])
    visited = {unit}
    while queue:
        module = queue.popleft()
        modules.append(module)
        for child in module.children():
            known = child in visited or child in boundaries
            if not known and not isinstance(child, FSDPModule):
                visited.add(child)
                queue.append(child)
    return modules


def materialize_modules(
    modules: list[nn.Module],
    device: torch.device,
    param_init_fn: Callable[[nn.Module], Any] | None,
    ignored_parameters: Collection[nn.Parameter],
) -> None:
    """Materializes the modules of one unit if any parameter or buffer of them is on meta.

    Raises AttributeError for one without ``reset_parameters``: to skip it would leave it with whatever its memory
    holds.
    """
    if not any(_is_meta(module, ignored_parameters) for module in modules):
        return
    if param_init_fn is not None and not callable(param_init_fn):
        raise ValueError(f"Expected {param_init_fn} to be callable but got {type(param_init_fn)}")
    for module in modules:
        if param_init_fn is not None:
            param_init_fn(module)
        else:
            _reset(module, device)


def _is_meta(module: nn.Module, ignored_parameters: Collection[nn.Parameter]) -> bool:
    return any(b.is_meta for b in module.buffers(recurse=False)) or any(
        p.is_meta for p in module.parameters(recurse=False) if p not in ignored_parameters
    )


def _reset(module: nn.Module, device: torch.device) -> None:
    if not [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
        return
    reset_parameters = getattr(module, "reset_parameters", None)
    if reset_parameters is None:
        raise AttributeError(
            f"{type(module).__name__} is on the meta device and has no reset_parameters(): give it "
            "one, or pass param_init_fn"
        )
    with torch.no_grad():
        module.to_empty(device=device, recurse=False)
        reset_parameters()


def broadcast_module_states(
    module: nn.Module,
    process_group: dist.ProcessGroup | None = None,
    *,
    device: torch.device | str | int | None = None,
) -> None:
    """Broadcasts the parameters and buffers of ``module`` from the first rank of a group to the others, all of which call.

    ``fully_shard`` takes each rank's shard from that rank's own values, so ranks that start from different ones give
    a mixture without any error (torchtitan#1777). This is FSDP1's ``sync_module_states=True`` for a model, or a unit,
    that has not been sharded yet; non-persistent buffers are included, and what units below have is not. ``device`` is
    where to communicate, for a model on the CPU with a backend that cannot send from there.
    """
    own = own_modules(module, ())
    parameters = [p for each in own for p in each.parameters(recurse=False)]
    buffers = [b for each in own for b in each.buffers(recurse=False)]
    broadcast_tensors(dict.fromkeys([*parameters, *buffers]), process_group, device)


def broadcast_over_mesh(
    tensors: Collection[torch.Tensor], mesh: DeviceMesh, device: torch.device
) -> None:
    """Broadcasts from the first rank of ``mesh`` along its first dimension, then from those ranks along the next."""
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
    if group is None:
        source = 0
    else:
        source = dist.get_global_rank(group, 0)
    for tensor in tensors:
        local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
        if local.is_meta:
            raise ValueError(
                "sync_module_states cannot broadcast a tensor on the meta device: materialize the "
                "module first, or pass param_init_fn"
            )
        sent = local.to(local.device if device is None else device).contiguous()
        dist.broadcast(sent, src=source, group=group)
        if sent.data_ptr() != local.data_ptr():
            local.copy_(sent)
