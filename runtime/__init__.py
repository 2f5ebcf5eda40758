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
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
)
from .clip import clip_grad_norm_
from .mesh import build_mesh
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
from .shard import shard_model
from .summon import summon_full_params
from .sync import broadcast_module_states

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
    "lambda_auto_wrap_policy",
    "no_sync",
    "plan_units",
    "remap_optimizer",
    "shard_model",
    "size_based_auto_wrap_policy",
    "summon_full_params",
    "transformer_auto_wrap_policy",
    "wrap",
]
