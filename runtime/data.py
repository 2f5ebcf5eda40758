"""``parameter.data = x`` of a sharded parameter or gradient."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from .gather import sharded_as


@torch.no_grad()
def assign_data(tensor: DTensor, value: torch.Tensor) -> None:
    """Copies ``value``, whole or a DTensor, into the shards of ``tensor``.

    Raises RuntimeError for another shape, dtype or kind of device: FSDP2 keeps the memory of a shard.
    """
    if value.shape != tensor.shape or value.dtype != tensor.dtype:
        raise RuntimeError(
            f"a sharded tensor of shape {tuple(tensor.shape)} and {tensor.dtype} cannot take "
            f"data of shape {tuple(value.shape)} and {value.dtype}"
        )
    shard = sharded_as(value, tensor)
    assert isinstance(shard, DTensor)
    tensor.to_local().copy_(shard.to_local())
