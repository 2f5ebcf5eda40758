"""FSDP1's public interface on FSDP2's engine: what migrated programs import.

``import fsdp_migrate.runtime as fsdp`` takes the place of ``import torch.distributed.fsdp as fsdp``: FSDP1's names
with its arguments and defaults, and FSDP2's own. The other functions are for programs on ``fully_shard``. Nothing of
FSDP1 is imported but its wrap policies, which activation checkpointing uses as well, so that a program goes on running
on a torch without it.
"""

from typing import Any

import torch

from . import api, fully_sharded_data_parallel, sharded_grad_scaler, wrap
from .api import *  # noqa: F403 (FSDP1's options)
from .bridge import FullyShardedDataParallel
from .changed import ChangedFromFSDP1
from .clip import clip_grad_norm_
from .forms import is_sharded, unwrap
from .gather import local_shard
from .gradients import no_sync
from .in_place import like_fsdp1, units
from .materialize import broadcast_module_states
from .older_optimizers import StaleParameter
from .optimizer_keys import rekey_optim_state_dict
from .optimizer_state import (
    flatten_sharded_optim_state_dict,
    full_optim_state_dict,
    optim_state_dict,
    optim_state_dict_to_load,
    scatter_full_optim_state_dict,
    shard_full_optim_state_dict,
    sharded_optim_state_dict,
)
from .precision import cast_buffers, run_in_full_precision
from .refusals import UnsupportedInFSDP2
from .sharded_grad_scaler import ShardedGradScaler
from .state_dict_types import get_state_dict_type, set_state_dict_type, state_dict_type
from .summon import summon_full_params
from .torch_private import warn_of_newer_torch
from .wrap import (
    CustomPolicy,
    ModuleWrapPolicy,
    _module_wrap_policy,
    _or_policy,
    always_wrap_policy,
    default_auto_wrap_policy,
    enable_wrap,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)

__all__ = [
    *api.__all__, "ChangedFromFSDP1", "CustomPolicy", "FullyShardedDataParallel",
    "ModuleWrapPolicy", "ShardedGradScaler", "StaleParameter", "UnsupportedInFSDP2",
    "_module_wrap_policy", "_or_policy", "always_wrap_policy", "api", "broadcast_module_states",
    "cast_buffers", "clip_grad_norm_", "default_auto_wrap_policy", "enable_wrap",
    "flatten_sharded_optim_state_dict", "full_optim_state_dict", "fully_sharded_data_parallel",
    "get_state_dict_type", "is_sharded", "lambda_auto_wrap_policy", "like_fsdp1",
    "local_shard", "no_sync", "optim_state_dict", "optim_state_dict_to_load", "rekey_optim_state_dict",
    "run_in_full_precision", "scatter_full_optim_state_dict", "set_state_dict_type",
    "shard_full_optim_state_dict", "sharded_grad_scaler", "sharded_optim_state_dict",
    "size_based_auto_wrap_policy", "state_dict_type", "summon_full_params",
    "transformer_auto_wrap_policy", "units", "unwrap", "wrap",
]  # fmt: skip

warn_of_newer_torch(torch.__version__)


def __getattr__(name: str) -> Any:
    """FSDP2's own public names, from torch."""
    from torch.distributed import fsdp

    if name in fsdp.__all__ and not name.startswith("Flat"):
        return getattr(fsdp, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
