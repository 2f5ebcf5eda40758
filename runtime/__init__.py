"""What migrated programs import: FSDP1's constructor and options on top of ``fully_shard``.

Needs torch >= 2.8 and the standard library, and nothing of FSDP1, so that a program goes on running
on a torch without it.
"""

from .accumulate import discard_unsynced_gradients, no_sync
from .annotate import enable_wrap, wrap
from .checkpoint_options import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    OptimStateDictConfig,
    OptimStateKeyType,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
)
from .clip import clip_grad_norm_
from .local import local_shard
from .mesh import build_mesh
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
from .optimizers import resharded, separate_parameters
from .options import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy
from .plan import Unit, plan_units
from .policies import (
    CustomPolicy,
    ModuleWrapPolicy,
    _module_wrap_policy,
    _or_policy,
    always_wrap_policy,
    default_auto_wrap_policy,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)
from .precision import cast_buffers
from .remap import remap_optimizer
from .set_optimizer_state import set_optimizer_state_dict
from .shard import shard_model
from .state_dict_types import get_state_dict_type, set_state_dict_type, state_dict_type
from .summon import summon_full_params
from .sync import broadcast_module_states
from .unused import fill_unused_gradients

__all__ = [
    "BackwardPrefetch",
    "CPUOffload",
    "CustomPolicy",
    "FullOptimStateDictConfig",
    "FullStateDictConfig",
    "LocalOptimStateDictConfig",
    "LocalStateDictConfig",
    "MixedPrecision",
    "ModuleWrapPolicy",
    "OptimStateDictConfig",
    "OptimStateKeyType",
    "ShardedOptimStateDictConfig",
    "ShardedStateDictConfig",
    "ShardingStrategy",
    "StateDictConfig",
    "StateDictSettings",
    "StateDictType",
    "Unit",
    "_module_wrap_policy",
    "_or_policy",
    "always_wrap_policy",
    "broadcast_module_states",
    "build_mesh",
    "cast_buffers",
    "clip_grad_norm_",
    "default_auto_wrap_policy",
    "discard_unsynced_gradients",
    "enable_wrap",
    "fill_unused_gradients",
    "flatten_sharded_optim_state_dict",
    "full_optim_state_dict",
    "get_state_dict_type",
    "lambda_auto_wrap_policy",
    "local_shard",
    "no_sync",
    "optim_state_dict",
    "optim_state_dict_to_load",
    "plan_units",
    "rekey_optim_state_dict",
    "remap_optimizer",
    "resharded",
    "scatter_full_optim_state_dict",
    "separate_parameters",
    "set_optimizer_state_dict",
    "set_state_dict_type",
    "shard_full_optim_state_dict",
    "shard_model",
    "sharded_optim_state_dict",
    "size_based_auto_wrap_policy",
    "state_dict_type",
    "summon_full_params",
    "transformer_auto_wrap_policy",
    "wrap",
]
