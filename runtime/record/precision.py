"""The dtype that a sharded model computes in: the narrowest of what its units and autocast ask for."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .layouts import fsdp2_state


def of(model: nn.Module) -> torch.dtype:
    """That dtype, when the model is called."""
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
    policy = getattr(fsdp2_state(module), "_mp_policy", None)
    dtype: torch.dtype | None = getattr(policy, "param_dtype", None)
    return dtype
