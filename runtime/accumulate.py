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

    The backward after the block must run outside it, else the optimizer has no gradients to use.
    Units that stay gathered from forward to backward (SHARD_GRAD_OP) stay so after a skipped
    backward too, which saves an all-gather for each unit and micro-batch (``_runtime_utils.py``,
    ``_should_free_in_backward``).

    Accumulated gradients are whole, not sharded, and are kept by FSDP2. ``zero_grad()`` drops them as
    under FSDP1, say those of micro-batches that are left over at the end of an epoch: until they are
    reduced, ``param.grad`` is a placeholder for them, and an optimizer that meets it raises. They add
    up in ``param_dtype``, as under FSDP1; FSDP2 alone would do so in ``reduce_dtype``.

    A module with a ``no_sync`` of its own, such as DistributedDataParallel, gets that one. Raises
    TypeError for a module that is not sharded.
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
