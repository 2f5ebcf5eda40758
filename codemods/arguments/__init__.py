"""The arguments of FSDP1's constructor, one module an argument: what becomes of each value that it can have.

Two are about the first argument, the model: `container` about its class, `current_device` about where it is.

A module says how plain PyTorch expresses the argument, or why only the runtime can; `constructor` puts the answers together.
"""

from fsdp_migrate.codemods.arguments import (
    auto_wrap_policy,
    backward_prefetch,
    container,
    cpu_offload,
    current_device,
    device_id,
    device_mesh,
    forward_prefetch,
    ignored,
    limit_all_gathers,
    mixed_precision,
    param_init_fn,
    sharding_strategy,
    sync_module_states,
    use_orig_params,
)

MODULES = (
    auto_wrap_policy,
    backward_prefetch,
    container,
    cpu_offload,
    current_device,
    device_id,
    device_mesh,
    forward_prefetch,
    ignored,
    limit_all_gathers,
    mixed_precision,
    param_init_fn,
    sharding_strategy,
    sync_module_states,
    use_orig_params,
)
