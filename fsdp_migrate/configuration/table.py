"""What each setting of FSDP1 is in FSDP2, whoever reads it.

Read from accelerate 1.15 (`utils/dataclasses.py`, `commands/launch.py`, `utils/launch.py`), transformers 5.23
(`training_args.py`) and axolotl (`utils/schemas`).
"""

import re
from dataclasses import dataclass

from fsdp_migrate.codemods.libraries import rules
from fsdp_migrate.configuration.tree import Data

# In the order of torch's enum, whose numbers are taken too.
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
OPTIONS = frozenset({"auto_wrap", "offload", *(name.lower() for name in STRATEGIES)})
REMOVED = {
    "backward_prefetch": "FSDP2 always gathers the next unit early in the backward",
    "backward_prefetch_policy": "nothing reads it, and FSDP2 always gathers the next unit early",
    "forward_prefetch": "with FSDP2 Accelerate's plugin refuses it, even False, and nothing else reads it",
    "limit_all_gathers": "FSDP2 has no such limit to set",
    "param_init_fn": "nothing calls it under FSDP2",
    "sync_module_states": "FSDP2 takes rank 0's weights under cpu_ram_efficient_loading; else load or seed them alike",
    "use_orig_params": "FSDP2 always keeps the original parameters",
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
    "fails under FSDP2: bitsandbytes' kernels take no DTensors; adamw_torch_8bit and adamw_torch do"
)
LOCAL = (
    "LOCAL_STATE_DICT has no FSDP2 form: write SHARDED_STATE_DICT or FULL_STATE_DICT, and run again"
)
STRATEGY = "write reshard_after_forward true for FULL_SHARD, false for SHARD_GRAD_OP, and version 2"
# An older Accelerate passes over the one in silence, and refuses a file with the other.
_SINCE = "Accelerate knows it since 1.6, and parallelism_config since 1.10"
SINCE = {
    rules.ACCELERATE: _SINCE,
    rules.PLUGIN: _SINCE,
    rules.TRANSFORMERS: "transformers 4 stays FSDP1 unless it is launched with FSDP_VERSION=2",
    rules.AXOLOTL: "axolotl reads it there since 0.12",
}
SAVES = (
    "transformers before 5.10 saves sharded states unless FSDP_STATE_DICT_TYPE is FULL_STATE_DICT"
)
SIZES = "dp_replicate_size is the number of nodes, dp_shard_size that of devices in a node"
MESHES = {
    rules.ACCELERATE: f"needs num_machines and num_processes, or version 2 and a parallelism_config: {SIZES}",
    rules.TRANSFORMERS: f"needs version 2 and parallelism_config=ParallelismConfig(...): {SIZES}",
    rules.AXOLOTL: f"needs fsdp_version 2 and its mesh: {SIZES}",
    rules.PLUGIN: f"needs fsdp_version=2 and Accelerator(parallelism_config=ParallelismConfig(...)): {SIZES}",
}
UNSHARDED = (
    "NO_SHARD is DistributedDataParallel: take FSDP away and launch on several devices; offloading and FSDP's activation"
    " checkpointing have no counterpart there"
)
POLICY = "Accelerate calls no policy function under FSDP2: use 'transformer_based_wrap' and transformer_cls_names_to_wrap=[...]"
PRECISION = (
    "write MixedPrecisionPolicy, or a dictionary of param_dtype, reduce_dtype and output_dtype"
)
STRATEGY_OF_LIGHTNING = (
    "is FSDP1 in Lightning: use ModelParallelStrategy(data_parallel_size=<processes>, tensor_parallel_size=1), and a"
    " configure_model that calls fully_shard with mesh=self.device_mesh['data_parallel']"
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
    return text if text in STRATEGIES else None


def is_on(data: Data) -> bool:
    """Whether a flag is set; transformers' are strings, too."""
    return bool(data) and str(data).lower() not in ("false", "0", "no")


def reshards(strategy: str) -> bool:
    """Whether a strategy frees parameters after the forward."""
    return strategy not in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2")


def options_of(data: Data) -> list[str]:
    """The options in transformers' `fsdp`, a string or a list; none if it is something else."""
    words = data.split() if isinstance(data, str) else data if isinstance(data, list) else []
    known = all(isinstance(word, str) and word in OPTIONS for word in words)
    return words if known else []
