"""What a program asks for: an optimizer's options for each parameter, by its name, and the dtype to compute in."""

from __future__ import annotations

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
    found: list[torch.dtype | None] = []
    found += [p.dtype for p in model.parameters() if p.is_floating_point()]
    for module in model.modules():
        policy = getattr(layouts.fsdp2_state(module), "_mp_policy", None)
        handle = module.__dict__.get("_handle")
        found.append(getattr(handle, "_fwd_bwd_param_dtype", None))
        found.append(getattr(policy, "param_dtype", None))
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            found.append(torch.get_autocast_dtype(device))
    known = [dtype for dtype in found if dtype is not None]
    return max(known or [torch.float32], key=lambda dtype: torch.finfo(dtype).eps)
