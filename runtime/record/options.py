"""An optimizer's options for each parameter, by the parameter's name: its weight decay, its rate."""

from __future__ import annotations

import torch

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
