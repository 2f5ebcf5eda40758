"""FSDP1's checkpoints where there is no accelerator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.distributed.fsdp import _flat_param, _optim_utils

from ..equivalence.train import fsdp1_on_cpu


@contextlib.contextmanager
def checkpoints_on_cpu() -> Iterator[None]:
    """What FSDP1 offloads is on the CPU already, where it would free it, or give all states one memory."""
    gather_states = _optim_utils._allgather_orig_param_states
    to_cpu = _flat_param.FlatParamHandle.to_cpu

    def gather_without_offload(*args: Any, **kwargs: Any) -> Any:
        if "cpu_offload" in kwargs:
            return gather_states(*args, **{**kwargs, "cpu_offload": False})
        return gather_states(*args[:-1], False)

    _optim_utils._allgather_orig_param_states = gather_without_offload
    _flat_param.FlatParamHandle.to_cpu = lambda self: contextlib.nullcontext()
    try:
        with fsdp1_on_cpu():
            yield
    finally:
        _optim_utils._allgather_orig_param_states = gather_states
        _flat_param.FlatParamHandle.to_cpu = to_cpu
