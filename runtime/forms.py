"""What a model is, whichever form it has: the bridge, sharded in place, in another wrapper, or not sharded."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from .attributes import WRAPPED
from .still_fsdp1 import is_fsdp1

_OTHERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def unwrap(model: nn.Module) -> Any:
    """The model itself: without the bridge's wrapper, FSDP1's or DistributedDataParallel's, however many are around it.

    A model that is sharded in place, or not at all, is its own; an attribute ``module`` of its own is not looked at.
    """
    while is_fsdp1(type(model)) or isinstance(model, _OTHERS) or WRAPPED in model._modules:
        model = model.module  # type: ignore[assignment]
    return model


def is_sharded(model: object) -> bool:
    """Whether ``model`` is a unit: of the bridge, of ``fully_shard`` or of torch's FSDP1."""
    return isinstance(model, FSDPModule) or is_fsdp1(type(model))
