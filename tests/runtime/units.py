"""A unit of the bridge, or of FSDP1: the same program on both."""

from typing import Any

import torch
from torch import nn


def unit(api: Any, module: nn.Module, **options: Any) -> Any:
    given = {"device_id": torch.device("cpu"), "use_orig_params": True, **options}
    return api.FullyShardedDataParallel(module, **given)
