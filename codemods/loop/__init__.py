"""The training loop: one module a construct.

no_sync             accumulation; accumulation: what it costs and gives with FSDP2
leftover_gradients  zero_grad() beside an accumulation; leftover_examples: programs before and after
clip_grad_norm, clip_branches, clip_local_norm
                    clipping by the method, in branches over the class, by torch's function; clip_calls: what one call shows
direct_forward      model.forward(x)
grad_scaler         ShardedGradScaler
"""

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
