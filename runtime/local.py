"""This rank's part of a parameter."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded parameter or gradient, as a plain tensor that shares its memory.

    FSDP1's parameters and gradients were such parts, so that norms and counts of them, reduced over
    ranks by the program itself, came out right. Of a DTensor they are the whole tensor's already,
    or, read with ``item()``, this rank's. A part has all dimensions but the first whole, where
    FSDP1's had one dimension; on some ranks it is empty.

    Args:
        tensor: a parameter, its ``data`` or its gradient; a plain tensor is its own part.
    """
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
