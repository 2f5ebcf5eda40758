"""What each setting of FSDP1 is in FSDP2, whoever reads it.

Read from accelerate 1.15 (`utils/dataclasses.py`, `commands/launch.py`, `utils/launch.py`), transformers 5.23
(`training_args.py`) and axolotl (`utils/schemas`).
"""

import re
from dataclasses import dataclass

from fsdp_migrate.codemods.libraries import rules
from fsdp_migrate.codemods.libraries.configuration.tree import Data

# In the order of torch's enum, whose numbers are taken too.
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
OPTIONS = frozenset({"auto_wrap", "offload", *[name.lower() for name in STRATEGIES]})
REMOVED = {
    "backward_prefetch": "FSDP2 always prefetches the next unit during backward",
    "backward_prefetch_policy": "no code reads it, and FSDP2 always prefetches the next unit",
    "forward_prefetch": "Accelerate raises if it is set together with FSDP2, even to `False`",
    "limit_all_gathers": "FSDP2 limits its memory without it",
    "param_init_fn": "no code calls it under FSDP2",
    "sync_module_states": (
        "under FSDP2 Accelerate broadcasts rank 0's weights if `cpu_ram_efficient_loading` is true. If it is false, each "
        "rank keeps the weights that it created or loaded, so give all ranks the same seed and the same checkpoint"
    ),
    "use_orig_params": "FSDP2 always keeps the original parameters, as FSDP1 did with `use_orig_params=True`",
}
# Arguments of TrainingArguments, with the prefix `fsdp_`, that moved into `fsdp_config`.
MOVED = ("transformer_layer_cls_to_wrap", "min_num_params")
KEPT = frozenset(
    """activation_checkpointing activation_checkpointing_offload auto_wrap_policy cpu_offload cpu_offload_pin_memory
    cpu_ram_efficient_loading final_state_dict_type ignored_modules min_num_params mixed_precision_policy offload_params
    reshard_after_forward sharding_strategy state_dict_type transformer_layer_cls_to_wrap version""".split()  # noqa: SIM905
)
# What a configuration of transformers or axolotl has beside `fsdp`.
RECIPE = frozenset(
    """base_model fsdp_transformer_layer_cls_to_wrap gradient_accumulation_steps learning_rate max_steps num_train_epochs
    output_dir per_device_train_batch_size""".split()  # noqa: SIM905
)
# What only another framework's `fsdp_config` has: verl's.
FOREIGN = frozenset({"_target_", "fsdp_size", "optimizer_offload", "param_offload", "wrap_policy"})

# Names of bitsandbytes' optimizers; `adamw_torch_8bit` is torchao's.
OF_BITSANDBYTES = re.compile(r"paged_\w+|(?!\w*torch)\w+_(?:8bit|bnb_8bit)")
PLAIN_ONLY = (
    "This optimizer raises under FSDP2, because those of bitsandbytes do not support DTensors. Use `adamw_torch_8bit` or "
    "`adamw_torch`."
)
LOCAL = "FSDP2 has no LOCAL_STATE_DICT. Set SHARDED_STATE_DICT or FULL_STATE_DICT, then run fsdp-migrate again."
STRATEGY = "set FSDP's version to 2, and `reshard_after_forward` to true for FULL_SHARD or false for SHARD_GRAD_OP"
# An older Accelerate ignores a version without an error, and refuses a file with a mesh.
SINCE_MESH = "Use it with Accelerate 1.10 or newer, because of `parallelism_config`."
_SINCE = "Use it with Accelerate 1.6 or newer: older releases silently use FSDP1."
SINCE = {
    rules.ACCELERATE: _SINCE,
    rules.PLUGIN: "Use it with Accelerate 1.6 or newer.",
    rules.TRANSFORMERS: "transformers 4 ignores the version: launch with `FSDP_VERSION=2`.",
    rules.AXOLOTL: "Use it with axolotl 0.12 or newer.",
}
SAVES = "transformers before 5.10 saves sharded states: for whole ones, launch with `FSDP_STATE_DICT_TYPE=FULL_STATE_DICT`."
SIZES = "`dp_replicate_size` is the number of nodes, `dp_shard_size` the number of devices per node"
_HYBRID = "FSDP2 needs a mesh for HYBRID_SHARD"
MESHES = {
    rules.ACCELERATE: (
        f"{_HYBRID}. Set `num_machines` and `num_processes` and run again, or write version 2 and a "
        f"`parallelism_config`: {SIZES}."
    ),
    rules.TRANSFORMERS: (
        f"{_HYBRID}. Write version 2 and `parallelism_config=ParallelismConfig(...)`: {SIZES}."
    ),
    rules.AXOLOTL: f"{_HYBRID}. Write `fsdp_version: 2` and the sizes of the mesh: {SIZES}.",
    rules.PLUGIN: (
        f"{_HYBRID}. Write `fsdp_version=2` and `Accelerator(parallelism_config=ParallelismConfig(...))`: {SIZES}."
    ),
}
UNSHARDED = (
    "FSDP2 has no NO_SHARD, which does what DistributedDataParallel does. Remove the FSDP settings and launch on several "
    "devices; DistributedDataParallel has no offloading and no activation checkpointing."
)
POLICY = (
    "Under FSDP2 Accelerate does not call a policy function. Use `'transformer_based_wrap'` and "
    "`transformer_cls_names_to_wrap=[...]` instead."
)
PRECISION = "FSDP2 does not accept FSDP1's `MixedPrecision`. Write `MixedPrecisionPolicy(param_dtype=..., reduce_dtype=...)`."
# What both have. Under FSDP1 the root alone casts what it is given.
PRECISE = "Replaced by `MixedPrecisionPolicy`. Each unit now casts its inputs, and buffers keep their dtype."
# Those with `native` were of Lightning 1.
LIGHTNING_NAMES = frozenset(
    {"fsdp", "fsdp_cpu_offload", "fsdp_native", "fsdp_native_full_shard_offload"}
)
STRATEGY_OF_VERL = (
    "With this value verl runs its FSDP1 code. {}. fsdp-migrate does not change it, because verl's `forward_prefetch` "
    "and its policies by size and for LoRA have no effect with `fsdp2`."
)
STRATEGY_OF_LIGHTNING = (
    "This selects FSDP1 in Lightning. Use `ModelParallelStrategy(data_parallel_size=<processes>, "
    "tensor_parallel_size=1)` of Lightning 2.3, and call `fully_shard` with `mesh=self.device_mesh['data_parallel']` in "
    "`configure_model`."
)
STRATEGY_OF_FABRIC = (
    "This selects FSDP1 in Lightning's Fabric. Use `ModelParallelStrategy(parallelize, data_parallel_size=<processes>, "
    "tensor_parallel_size=1)` of `lightning.fabric.strategies` (Lightning 2.3), with a function `parallelize(model, "
    "device_mesh)` that calls `fully_shard` with `mesh=device_mesh['data_parallel']` and returns the model."
)


@dataclass(frozen=True)
class CPUOffload:
    """FSDP1's class, where Python gives it to a plugin."""

    offload_params: bool


def strategy_of(data: Data) -> str | None:
    """A strategy as it may be written: by name in any case, with an underscore, or by torch's number."""
    text = str(data).upper().removeprefix("_")
    if text.isdecimal() and 1 <= int(text) <= len(STRATEGIES):
        return STRATEGIES[int(text) - 1]
    if text in STRATEGIES:
        return text
    return None


def is_on(data: Data) -> bool:
    """Whether a flag is set; transformers' are strings, too."""
    return bool(data) and str(data).lower() not in ("false", "0", "no")


def reshards(strategy: str) -> bool:
    """Whether a strategy frees parameters after the forward."""
    return strategy not in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2")


def options_of(data: Data) -> list[str]:
    """The options in transformers' `fsdp`, a string or a list; none if it is something else."""
    if isinstance(data, str):
        words = data.split()
    elif isinstance(data, list):
        words = data
    else:
        words = []
    known = all(isinstance(word, str) and word in OPTIONS for word in words)
    if known:
        return words
    return []
