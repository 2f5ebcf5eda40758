"""Parameters that a backward did not reach."""

from __future__ import annotations

import torch
from torch import nn

from .fsdp_state import parameters_of, units_of


@torch.no_grad()
def fill_unused_gradients(model: nn.Module) -> None:
    """Gives zero gradients to unused parameters of units that have gradients, as FSDP1 did.

    FSDP1 reduced the gradient of a whole unit, so that a parameter that took no part in the loss
    had zeros for a gradient as soon as another of its unit had one; the optimizer then applied
    weight decay and momentum to it. FSDP2 leaves ``None`` and the optimizer passes it by. A unit
    that took no part at all has no gradients in either. Call it between the last ``backward()`` of
    a step and clipping or the step.

    All ranks must have used the same parameters: where they differ, FSDP2's reduction fails or
    hangs before (from torch 2.13 on ``model.set_reduce_scatter_unused_params(True)`` prevents that).
    """
    for unit in units_of(model):
        parameters = [parameter.sharded_param for parameter in parameters_of(unit)]
        if all(parameter.grad is None for parameter in parameters):
            continue
        for parameter in parameters:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
