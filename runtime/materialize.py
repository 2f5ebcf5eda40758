"""Building the part of a meta-device model that one unit holds, unit by unit as FSDP1 does.

With the same order and the same full-size tensors the random numbers are the same too
(``torch/distributed/fsdp/_init_utils.py``, ``_materialize_meta_module``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule


def own_modules(unit: nn.Module, boundaries: Collection[nn.Module]) -> list[nn.Module]:
    """The modules of ``unit``, breadth first, up to ``boundaries`` and modules sharded before."""
    modules = []
    queue = deque([unit])
    visited = {unit}
    while queue:
        module = queue.popleft()
        modules.append(module)
        for child in module.children():
            if (
                child not in visited
                and child not in boundaries
                and not isinstance(child, FSDPModule)
            ):
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
    shared = _shared_parameters(modules)
    for module in modules:
        if param_init_fn is not None:
            param_init_fn(module)
        else:
            _reset(module, device)
    # Module by module, a shared parameter became several: share it again, as it was built.
    for first, *others in shared:
        parameter = getattr(*first)
        for owner, name in others:
            setattr(owner, name, parameter)


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


def _shared_parameters(modules: list[nn.Module]) -> list[list[tuple[nn.Module, str]]]:
    """The places of each parameter that is found in more than one."""
    places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for module in modules:
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            places.setdefault(parameter, []).append((module, name))
    return [found for found in places.values() if len(found) > 1]
