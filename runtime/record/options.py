"""What a program asks for: an optimizer's options for each parameter, by its name, and the dtype to compute in."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from . import layouts
from .census import roots

_HOW = {"foreach", "fused", "capturable", "differentiable"}
"""Options that say how to compute, not what."""

Options = dict[str, dict[str, float]]


def of(optimizer: torch.optim.Optimizer) -> tuple[Options, int]:
    """The options by name, and how many of the optimizer's parameters belong to no module.

    FSDP1's flat parameters are left out: one holds many of the model's.
    """
    names: dict[int, str] = {}
    for root in roots():
        sharded = layouts.resharded(root)
        for name, parameter in root.named_parameters():
            names.setdefault(id(sharded.get(id(parameter), parameter)), layouts.clean(name))
    found: Options = {}
    lost = 0
    for group in optimizer.param_groups:
        values = {
            name: float(value)
            for name, value in group.items()
            if name not in _HOW and isinstance(value, (int, float))
        }
        for parameter in group["params"]:
            known = names.get(id(parameter))
            lost += known is None
            if known is not None and not known.endswith("_flat_param"):
                found[known] = values
    return found, lost


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype that a sharded model computes in when it is called: the narrowest that its units and autocast ask for."""
    found = [dtype for module in model.modules() if (dtype := _of_unit(module)) is not None]
    found += [parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()]
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            found.append(torch.get_autocast_dtype(device))
    return max(found or [torch.float32], key=lambda dtype: torch.finfo(dtype).eps)


def _of_unit(module: nn.Module) -> torch.dtype | None:
    handle: Any = module.__dict__.get("_handle")
    if handle is not None:
        flat: torch.dtype | None = getattr(handle, "_fwd_bwd_param_dtype", None)
        return flat
    policy = getattr(layouts.fsdp2_state(module), "_mp_policy", None)
    dtype: torch.dtype | None = getattr(policy, "param_dtype", None)
    return dtype
