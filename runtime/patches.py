"""What of torch's classes is changed: once, when a program first wraps a model or keeps one like FSDP1's."""

from __future__ import annotations

from functools import cache

import torch
from torch.distributed.tensor import DTensor

from .gather import assign_data
from .older_optimizers import watch
from .quirks import record_of_parameter
from .torch_private import make_data_settable


@cache
def install() -> None:
    """Makes ``p.data = x`` write to shards, and follows optimizers; importing the runtime changes nothing."""
    make_data_settable(_assign)
    watch()


def _assign(tensor: DTensor, value: torch.Tensor) -> bool:
    """``tensor.data = value``, unless that is switched off for the model."""
    record = record_of_parameter(tensor)
    if record is not None:
        if "data_writes" in record.switched_off:
            return False
        record.add("data_writes", "p.data = x")
    assign_data(tensor, value)
    return True
