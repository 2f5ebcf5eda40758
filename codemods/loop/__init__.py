"""The training loop: forward, accumulation, clipping, scaling."""

from fsdp_migrate.codemods.loop import (
    clip_branches,
    clip_grad_norm,
    clip_local_norm,
    direct_forward,
    grad_scaler,
    leftover_gradients,
    no_sync,
)

MODULES = (
    no_sync,
    leftover_gradients,
    clip_branches,
    clip_grad_norm,
    clip_local_norm,
    direct_forward,
    grad_scaler,
)
