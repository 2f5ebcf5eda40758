"""The names of torch's FSDP1, and where the runtime has each of them.

The runtime mirrors FSDP1's public modules one to one, so a path is translated by its prefix alone. A program that was migrated
before imports from the runtime; its names are FSDP1's all the same.
"""

from __future__ import annotations

TORCH = "torch.distributed.fsdp"
RUNTIME = "fsdp_migrate.runtime"
CLASS = "FullyShardedDataParallel"

# FSDP1's public modules, below either package.
MODULES = ("", ".api", ".fully_sharded_data_parallel", ".wrap", ".sharded_grad_scaler")

POLICIES = frozenset(
    {
        "ModuleWrapPolicy",
        "CustomPolicy",
        "transformer_auto_wrap_policy",
        "size_based_auto_wrap_policy",
        "default_auto_wrap_policy",
        "lambda_auto_wrap_policy",
        "always_wrap_policy",
        "_module_wrap_policy",
        "_or_policy",
    }
)
OPTIONS = frozenset({"ShardingStrategy", "BackwardPrefetch", "MixedPrecision", "CPUOffload"})
STATE_DICTS = frozenset(
    {
        "StateDictType",
        "StateDictSettings",
        "StateDictConfig",
        "FullStateDictConfig",
        "ShardedStateDictConfig",
        "LocalStateDictConfig",
        "OptimStateDictConfig",
        "FullOptimStateDictConfig",
        "ShardedOptimStateDictConfig",
        "LocalOptimStateDictConfig",
        "OptimStateKeyType",
    }
)
WRAPPING = frozenset({"enable_wrap", "wrap"})
NAMES = POLICIES | OPTIONS | STATE_DICTS | WRAPPING | {CLASS, "ShardedGradScaler"}

# The class's static functions for states of optimizers.
OPTIMIZER_STATES = (
    "optim_state_dict",
    "optim_state_dict_to_load",
    "full_optim_state_dict",
    "sharded_optim_state_dict",
    "shard_full_optim_state_dict",
    "scatter_full_optim_state_dict",
    "flatten_sharded_optim_state_dict",
    "rekey_optim_state_dict",
)

FSDP2_NAMES = frozenset(
    {
        "fully_shard",
        "FSDPModule",
        "MixedPrecisionPolicy",
        "OffloadPolicy",
        "CPUOffloadPolicy",
        "DataParallelMeshDims",
        "UnshardHandle",
        "register_fsdp_forward_method",
        "share_comm_ctx",
    }
)

# Where each name is public: `wrap` is a module of the package, and a function in that module.
_PATHS = {
    f"{package}{module}.{name}": name
    for package in (TORCH, RUNTIME)
    for module in (*MODULES, "._wrap_utils")
    for name in NAMES
    if (module, name) != ("", "wrap")
}


def fsdp1_name(dotted: str) -> str | None:
    """The FSDP1 name that a dotted path means: `torch.distributed.fsdp.api.CPUOffload` is `CPUOffload`.

    None for anything else, look-alikes of other packages (fairscale, torch_xla, Megatron) among them.
    """
    return _PATHS.get(dotted)


def is_module(dotted: str) -> bool:
    """Whether a dotted path is torch's package `torch.distributed.fsdp` or a public FSDP1 module of it."""
    return dotted.startswith(TORCH) and dotted[len(TORCH) :] in MODULES


def in_runtime(module: str) -> str:
    """The runtime's counterpart of one of torch's public FSDP1 modules."""
    return RUNTIME + module[len(TORCH) :]


def is_private(dotted: str) -> bool:
    """Whether a dotted path leads to what only torch's FSDP1 has: its private modules and `FlatParameter`."""
    is_public = dotted in _PATHS or dotted.rpartition(".")[0] in _PATHS
    if is_public or not dotted.startswith(f"{TORCH}."):
        return False
    first, _, rest = dotted[len(TORCH) + 1 :].partition(".")
    # FSDP2's own, and both's
    if first == "_fully_shard" or (first == "_common_utils" and not rest):
        return False
    if first in {"api", "wrap", "fully_sharded_data_parallel", "sharded_grad_scaler"}:
        is_own = rest.startswith("_") or rest[:1].isupper()
        return is_own and rest not in FSDP2_NAMES
    return first.startswith("_") or first == "FlatParameter"
