"""FSDP1's two prefetch options, by FSDP2's explicit prefetch lists. Neither changes any number."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from .torch_private import parameter_groups


def disable_backward_prefetch(unit: FSDPModule) -> None:
    """FSDP1's ``backward_prefetch=None``: a list replaces FSDP2's own choice, and a unit has itself already."""
    unit.set_modules_to_backward_prefetch([unit])


def prefetch_in_forward_order(root: Any, units: list[Any]) -> None:
    """FSDP1's ``forward_prefetch=True``: each unit gathers the next one's parameters before its own computation.

    As in FSDP1 the order is that of the first forward. ``root`` is in that forward already, but for its wrapped
    module's.
    """
    order: list[FSDPModule] = []

    def record(unit: FSDPModule) -> None:
        if unit not in order and parameter_groups(unit):
            order.append(unit)

    def finish(module: nn.Module, args: Any, output: Any) -> None:
        for handle in handles:
            handle.remove()
        for unit, following in pairwise(order):
            unit.set_modules_to_forward_prefetch([following])

    handles = [
        unit.module.register_forward_pre_hook(lambda module, args, unit=unit: record(unit))
        for unit in units
    ]
    handles.append(root.module.register_forward_hook(finish))
