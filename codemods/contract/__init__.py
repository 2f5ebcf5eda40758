"""The contract of FSDP2: what code that calls `fully_shard` already, by hand or migrated, must keep to.

`check --fsdp2` asks these modules, each about one part of the contract. They have rules of their own, FSDP701 and following,
because they speak of other programs than the rules of the migration: nothing here is FSDP1's, and nothing is rewritten. A
finding stands only where the value is known to be sharded by `fully_shard`; what merely may be is passed over.
"""

from fsdp_migrate.codemods.contract import (
    clipped_norm,
    first_rank,
    first_weights,
    fsdp1_members,
    gradient_sync,
    module_use,
    older_optimizer,
    options,
    order,
    root_reshard,
    state_dicts,
    strategies,
    units,
)

MODULES = (
    order,
    units,
    older_optimizer,
    module_use,
    state_dicts,
    clipped_norm,
    root_reshard,
    options,
    strategies,
    gradient_sync,
    first_weights,
    fsdp1_members,
    first_rank,
)
