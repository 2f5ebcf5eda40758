"""Gradient accumulation without communication."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

from .gradients import show_unreduced
from .torch_private import (
    keeps_unsharded_after_forward,
    syncs_gradients,
    units_of,
)


@contextlib.contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Skips gradient reduction for the backward passes inside, as FSDP1's ``model.no_sync()`` does.

    Units that stay gathered from forward to backward (SHARD_GRAD_OP) stay so after a skipped backward too
    (``_runtime_utils.py``, ``_should_free_in_backward``). Until gradients are reduced, ``param.grad`` is a
    placeholder for them: ``zero_grad()`` drops them, as under FSDP1, and an optimizer that meets it raises. They add
    up in ``param_dtype``; FSDP2 alone would do so in ``reduce_dtype``.

    A module with a ``no_sync`` of its own, such as DistributedDataParallel, gets that one.
    """
    units = units_of(model)
    if not units:
        own = getattr(model, "no_sync", None)
        if own is None:
            raise TypeError(
                f"no_sync() expects a sharded module but got {type(model).__name__}: shard it "
                "first, with FullyShardedDataParallel or fully_shard"
            )
        with own():
            yield
        return
    before = [(unit, syncs_gradients(unit), keeps_unsharded_after_forward(unit)) for unit in units]
    try:
        for unit, _, keep_unsharded in before:
            show_unreduced(unit)
            unit.set_requires_gradient_sync(False, recurse=False)
            if keep_unsharded:
                unit.set_reshard_after_backward(False, recurse=False)
        yield
    finally:
        for unit, synced, keep_unsharded in before:
            unit.set_requires_gradient_sync(synced, recurse=False)
            if keep_unsharded:
                unit.set_reshard_after_backward(synced, recurse=False)
