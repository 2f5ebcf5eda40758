"""The names of torch's FSDP1, under every path by which programs reach them."""

from __future__ import annotations

from enum import Enum

PACKAGE = "torch.distributed.fsdp"

FSDP1_PATHS = (
    PACKAGE,
    f"{PACKAGE}.api",
    f"{PACKAGE}.fully_sharded_data_parallel",
    f"{PACKAGE}.wrap",
    f"{PACKAGE}._wrap_utils",
    f"{PACKAGE}.sharded_grad_scaler",
)

FSDP2_PATHS = (
    PACKAGE,
    f"{PACKAGE}._fully_shard",
    "torch.distributed._composable.fsdp",
    "torch.distributed._composable.fsdp.fully_shard",
)


class Kind(str, Enum):
    """What an FSDP1 name is for."""

    CLASS = "class"
    OPTION = "option"
    POLICY = "policy"
    STATE_DICT = "state-dict"
    WRAP = "wrap"
    SCALER = "scaler"


KINDS: dict[str, Kind] = {
    "FullyShardedDataParallel": Kind.CLASS,
    "ShardingStrategy": Kind.OPTION,
    "BackwardPrefetch": Kind.OPTION,
    "MixedPrecision": Kind.OPTION,
    "CPUOffload": Kind.OPTION,
    "ModuleWrapPolicy": Kind.POLICY,
    "CustomPolicy": Kind.POLICY,
    "transformer_auto_wrap_policy": Kind.POLICY,
    "size_based_auto_wrap_policy": Kind.POLICY,
    "default_auto_wrap_policy": Kind.POLICY,
    "lambda_auto_wrap_policy": Kind.POLICY,
    "always_wrap_policy": Kind.POLICY,
    "_module_wrap_policy": Kind.POLICY,
    "_or_policy": Kind.POLICY,
    "StateDictType": Kind.STATE_DICT,
    "StateDictSettings": Kind.STATE_DICT,
    "StateDictConfig": Kind.STATE_DICT,
    "FullStateDictConfig": Kind.STATE_DICT,
    "ShardedStateDictConfig": Kind.STATE_DICT,
    "LocalStateDictConfig": Kind.STATE_DICT,
    "OptimStateDictConfig": Kind.STATE_DICT,
    "FullOptimStateDictConfig": Kind.STATE_DICT,
    "ShardedOptimStateDictConfig": Kind.STATE_DICT,
    "LocalOptimStateDictConfig": Kind.STATE_DICT,
    "OptimStateKeyType": Kind.STATE_DICT,
    "enable_wrap": Kind.WRAP,
    "wrap": Kind.WRAP,
    "ShardedGradScaler": Kind.SCALER,
}

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

_BY_PATH = {f"{path}.{name}": name for path in FSDP1_PATHS for name in KINDS}
del _BY_PATH[f"{PACKAGE}.wrap"]  # the submodule, not the function in it


def fsdp1_name(dotted: str) -> str | None:
    """The FSDP1 name that a dotted path stands for: `torch.distributed.fsdp.api.CPUOffload` is `CPUOffload`.

    None for anything else, look-alikes of other packages (fairscale, torch_xla, Megatron) among it.
    """
    return _BY_PATH.get(dotted)


def fsdp1_member(dotted: str) -> tuple[str, str] | None:
    """The FSDP1 name and the attribute taken of it: `….ShardingStrategy.NO_SHARD` is `(ShardingStrategy, NO_SHARD)`."""
    owner, _, member = dotted.rpartition(".")
    name = fsdp1_name(owner)
    return None if name is None else (name, member)


def is_module(dotted: str) -> bool:
    """Whether a dotted path is FSDP1's package or a public module of it."""
    return dotted in FSDP1_PATHS


def is_private(dotted: str) -> bool:
    """Whether a dotted path leads into the private modules of FSDP1, which have no counterpart in FSDP2."""
    if not dotted.startswith(f"{PACKAGE}.") or dotted in _BY_PATH:
        return False
    first = dotted[len(PACKAGE) + 1 :].split(".")[0]
    if first == "FlatParameter":
        return True
    if first == "fully_sharded_data_parallel":
        return dotted.count(".") > PACKAGE.count(".") + 1 and fsdp1_member(dotted) is None
    if first in {"_fully_shard", "_wrap_utils"}:
        return False
    return first.startswith("_") or dotted.rpartition(".")[2].startswith("_")
