"""``parameter.data = x`` of a sharded parameter."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from .gather import sharded_as


@torch.no_grad()
def assign_data(parameter: DTensor, value: torch.Tensor) -> None:
    """Copies ``value``, whole or a DTensor, into the shards of ``parameter``.

    Raises RuntimeError for another shape, dtype or kind of device: FSDP2 keeps the memory of a shard.
    """
    if value.shape != parameter.shape or value.dtype != parameter.dtype:
        raise RuntimeError(
            f"a sharded parameter of shape {tuple(parameter.shape)} and {parameter.dtype} cannot take "
            f"data of shape {tuple(value.shape)} and {value.dtype}"
        )
    shard = sharded_as(value, parameter)
    assert isinstance(shard, DTensor)
    parameter.to_local().copy_(shard.to_local())
