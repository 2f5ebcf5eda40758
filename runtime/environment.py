"""FSDP1's environment variables that FSDP2 does not read."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch import nn

from .changed import say


def tell_of_variables(modules: Iterable[nn.Module], param_dtype: torch.dtype | None) -> None:
    """Says which of the variables that are set have no effect on what is sharded now, where they had one under FSDP1."""
    if os.environ.get("FSDP_USE_FULL_PREC_IN_EVAL") == "1" and param_dtype is not None:
        say(
            "FSDP217",
            f"FSDP_USE_FULL_PREC_IN_EVAL=1 has no effect under FSDP2: evaluation runs in {param_dtype}, the param_dtype. "
            "To evaluate in full precision, shard another copy of the model without mixed_precision",
        )
    if os.environ.get("FSDP_USE_UNSAFE_SETATTR") == "1":
        names = sorted({type(each).__name__ for each in modules if _sets_attributes_itself(each)})
        if names:
            say(
                "FSDP217",
                "FSDP_USE_UNSAFE_SETATTR=1 has no effect under FSDP2, which sets parameters through __setattr__ of "
                f"{names[0]}. Let that method pass parameters on to nn.Module",
            )


def _sets_attributes_itself(module: nn.Module) -> bool:
    return type(module).__setattr__ is not nn.Module.__setattr__
