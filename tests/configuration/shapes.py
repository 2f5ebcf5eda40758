"""The shapes that configurations of FSDP1 have, each with what it becomes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """One configuration.

    Attributes:
        title: in a few words; the name of its test.
        before: its text.
        after: its text afterwards; None if it stays as it is.
        says: a part of what is said of it; nothing may be said if empty and it stays.
        ending: of the file's name.
    """

    title: str
    before: str
    after: str | None = None
    says: str = ""
    ending: str = "yaml"


def _with_strategy(value: str, machines: int = 1, processes: int = 4) -> str:
    return f"""\
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: {value}
  fsdp_state_dict_type: FULL_STATE_DICT
num_machines: {machines}
num_processes: {processes}
"""


def _resharding(value: str, machines: int = 1, processes: int = 4) -> str:
    return f"""\
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: {value}
  fsdp_state_dict_type: FULL_STATE_DICT
num_machines: {machines}
num_processes: {processes}
"""


def _hybrid(value: str) -> str:
    mesh = """\
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 4
fsdp_config:
"""
    return _resharding(value, 2, 8).replace("fsdp_config:\n", mesh)


_UNSHARDED = "distributed_type: MULTI_GPU\nnum_machines: 1\nnum_processes: 4\n"

SHAPES = (
    Shape(
        "the full documented configuration",
        """\
# Since we are doing FSDP, we need to specify the distributed type as FSDP
distributed_type: FSDP
# Can be one of "no", "fp16", or "bf16"
mixed_precision: 'bf16'
num_machines: 1
num_processes: 2   # accelerators

# Then we can specify the FSDP config
fsdp_config:
  fsdp_activation_checkpointing: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP  # a unit a layer
  fsdp_backward_prefetch_policy: BACKWARD_PRE
  # overlaps less than one hopes
  fsdp_forward_prefetch: false
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: true
  fsdp_sharding_strategy: FULL_SHARD   # ZeRO-3
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_use_orig_params: true  # PEFT
""",
        """\
# Since we are doing FSDP, we need to specify the distributed type as FSDP
distributed_type: FSDP
# Can be one of "no", "fp16", or "bf16"
mixed_precision: 'bf16'
num_machines: 1
num_processes: 2   # accelerators

# Then we can specify the FSDP config
fsdp_config:
  fsdp_version: 2
  fsdp_activation_checkpointing: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP  # a unit a layer
  # overlaps less than one hopes
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: true
  fsdp_reshard_after_forward: true   # ZeRO-3
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  # PEFT
""",
    ),
    Shape("FULL_SHARD", _with_strategy("FULL_SHARD"), _resharding("true")),
    Shape("SHARD_GRAD_OP", _with_strategy("SHARD_GRAD_OP"), _resharding("false")),
    Shape("NO_SHARD", _with_strategy("NO_SHARD"), _UNSHARDED),
    Shape("HYBRID_SHARD, two nodes", _with_strategy("HYBRID_SHARD", 2, 8), _hybrid("true")),
    Shape("HYBRID_SHARD, one node", _with_strategy("HYBRID_SHARD"), _resharding("true"), says="launched on several nodes"),
    Shape(
        "HYBRID_SHARD, nodes not known",
        "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}\nnum_processes: 8\n",
        says="dp_replicate_size is the number of nodes",
    ),
    Shape(
        "HYBRID_SHARD_ZERO2, Accelerate's spelling",
        _with_strategy("HYBRID_SHARD_ZERO2", 2, 8),
        _hybrid("false"),
    ),
    Shape(
        "_HYBRID_SHARD_ZERO2, torch's spelling",
        _with_strategy("_HYBRID_SHARD_ZERO2", 2, 8),
        _hybrid("false"),
    ),
    Shape("a number", _with_strategy("2"), _resharding("false")),
    Shape("a number in quotes", _with_strategy("'3'"), _UNSHARDED),
    Shape("lower case", _with_strategy("full_shard"), _resharding("true")),
    Shape(
        "a name that is none",
        _with_strategy("${STRATEGY}"),
        says="the strategy is known only when the program runs",
    ),
    Shape(
        "NO_SHARD with offloading",
        _with_strategy("NO_SHARD\n  fsdp_offload_params: true"),
        says="offloading and FSDP's activation checkpointing have no counterpart",
    ),
    Shape(
        "NO_SHARD with offloading in JSON",
        '{"distributed_type": "FSDP",\n "fsdp_config": {"fsdp_sharding_strategy": 3, "fsdp_offload_params": true}}\n',
        says="NO_SHARD is DistributedDataParallel",
        ending="json",
    ),
    Shape(
        "the strategy under its newer name",
        _with_strategy("FULL_SHARD").replace("sharding_strategy", "reshard_after_forward"),
        _resharding("true"),
    ),
    Shape(
        "no type of state dict",
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: false\nnum_processes: 2\n",
        """\
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_offload_params: false
num_processes: 2
""",
    ),
    Shape(
        "LOCAL_STATE_DICT",
        _with_strategy("FULL_SHARD").replace("FULL_STATE", "LOCAL_STATE"),
        says="write SHARDED_STATE_DICT or FULL_STATE_DICT",
    ),
    Shape(
        "prefetch flags",
        """\
distributed_type: FSDP
num_processes: 2
fsdp_config: {fsdp_version: 1, fsdp_forward_prefetch: false, fsdp_backward_prefetch: NO_PREFETCH,
              fsdp_state_dict_type: FULL_STATE_DICT}  # one line
""",
        """\
distributed_type: FSDP
num_processes: 2
fsdp_config: {fsdp_version: 2,
              fsdp_state_dict_type: FULL_STATE_DICT}  # one line
""",
    ),
    Shape(
        "settings by size",
        """\
distributed_type: FSDP
num_processes: 2
fsdp_config:
  auto_wrap_policy: SIZE_BASED_WRAP
  min_num_params: 2000
  activation_checkpointing: true
  state_dict_type: full_state_dict
""",
        """\
distributed_type: FSDP
num_processes: 2
fsdp_config:
  version: 2
  auto_wrap_policy: SIZE_BASED_WRAP
  min_num_params: 2000
  activation_checkpointing: true
  state_dict_type: full_state_dict
""",
    ),
    Shape(
        "anchors",
        """\
fp8_config: {}
distributed_type: &kind FSDP
num_processes: 2
dynamo_config: &nothing {}
mpirun_config: *nothing
fsdp_config: &fsdp
  fsdp_sharding_strategy: SHARD_GRAD_OP   # kept
  fsdp_use_orig_params: &yes true
  fsdp_offload_params: false
  fsdp_state_dict_type: FULL_STATE_DICT
""",
        """\
fp8_config: {}
distributed_type: &kind FSDP
num_processes: 2
dynamo_config: &nothing {}
mpirun_config: *nothing
fsdp_config: &fsdp
  fsdp_version: 2
  fsdp_reshard_after_forward: false   # kept
  fsdp_offload_params: false
  fsdp_state_dict_type: FULL_STATE_DICT
""",
    ),
    Shape(
        "a merge",
        """\
base: &base
  fsdp_use_orig_params: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
small:
  distributed_type: FSDP
  fsdp_config:
    <<: *base
    fsdp_sharding_strategy: FULL_SHARD
large:
  distributed_type: FSDP
  fsdp_config:
    <<: *base
    fsdp_sharding_strategy: SHARD_GRAD_OP
""",
        """\
base: &base
  fsdp_state_dict_type: SHARDED_STATE_DICT
small:
  distributed_type: FSDP
  fsdp_config:
    fsdp_version: 2
    <<: *base
    fsdp_reshard_after_forward: true
large:
  distributed_type: FSDP
  fsdp_config:
    fsdp_version: 2
    <<: *base
    fsdp_reshard_after_forward: false
""",
    ),
    Shape(
        "an anchor that goes",
        _with_strategy(
            "FULL_SHARD\n  fsdp_use_orig_params: &yes true\n  fsdp_offload_params: *yes"
        ),
        says="the result would not parse",
    ),
    Shape(
        "several documents",
        f"{_with_strategy('FULL_SHARD')}---\ndistributed_type: MULTI_GPU\n---  # last\n{_with_strategy('2')}",
        f"{_resharding('true')}---\ndistributed_type: MULTI_GPU\n---  # last\n{_resharding('false')}",
    ),
    Shape(
        "JSON",
        """\
{
  "distributed_type": "FSDP",
  "fsdp_config": {
    "fsdp_forward_prefetch": false,
    "fsdp_sharding_strategy": "SHARD_GRAD_OP",
    "fsdp_transformer_layer_cls_to_wrap": "GPT2Block",
    "fsdp_use_orig_params": true
  },
  "num_processes": 2
}
""",
        """\
{
  "distributed_type": "FSDP",
  "fsdp_config": {
    "fsdp_version": 2,
    "fsdp_state_dict_type": "FULL_STATE_DICT",
    "fsdp_reshard_after_forward": false,
    "fsdp_transformer_layer_cls_to_wrap": "GPT2Block"
  },
  "num_processes": 2
}
""",
        ending="json",
    ),
    Shape(
        "version 2 already",
        """\
# comments
distributed_type: FSDP
fsdp_config:
    fsdp_version: 2
    fsdp_sharding_strategy: FULL_SHARD
num_processes: 2
""",
    ),
    Shape(
        "no FSDP", "distributed_type: MULTI_GPU\nfsdp_config: {}  # fsdp: none\nnum_processes: 2\n"
    ),
    Shape("empty", ""),
    Shape(
        "broken",
        "distributed_type: FSDP\nfsdp_config: {fsdp_use_orig_params: true\n",
        says="does not parse",
    ),
    Shape(
        "broken JSON",
        '{"distributed_type": "FSDP",\n "fsdp_config": {"a": }}',
        says="does not parse",
        ending="json",
    ),
    Shape(
        "FSDP and nothing else",
        "distributed_type: FSDP\nnum_processes: 2\n",
        """\
fsdp_config:
  fsdp_version: 2
  fsdp_state_dict_type: FULL_STATE_DICT
distributed_type: FSDP
num_processes: 2
""",
    ),
    Shape(
        "axolotl, without prefixes",
        """\
base_model: NousResearch/Llama-3.2-1B
fsdp_version: 1
fsdp_config:
  offload_params: false
  sharding_strategy: SHARD_GRAD_OP
  sync_module_states: true
""",
        """\
base_model: NousResearch/Llama-3.2-1B
fsdp_version: 2
fsdp_config:
  offload_params: false
  reshard_after_forward: false
""",
    ),
    Shape(
        "axolotl, a part of a recipe",
        "fsdp_version: 1\nfsdp_config:\n  offload_params: true\n",
        "fsdp_version: 2\nfsdp_config:\n  offload_params: true\n",
    ),
    Shape(
        "axolotl, and nothing is left",
        "base_model: x\nfsdp_config:\n  limit_all_gathers: true\n",
        "base_model: x\nfsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n",
    ),
    Shape(
        "a recipe for transformers",
        """\
learning_rate: 1.0e-4
fsdp: "full_shard auto_wrap offload"  # ZeRO-3
fsdp_config:
  backward_prefetch: backward_pre
  forward_prefetch: 'false'
  use_orig_params: 'true'
output_dir: out
""",
        """\
learning_rate: 1.0e-4
fsdp: true  # ZeRO-3
fsdp_config:
  version: 2
  reshard_after_forward: true
  cpu_offload: true
output_dir: out
""",
    ),
    Shape(
        "transformers' own file",
        '{"transformer_layer_cls_to_wrap": ["GPT2Block"], "backward_prefetch": "backward_pre", "use_orig_params": true}\n',
        '{"version": 2, "transformer_layer_cls_to_wrap": ["GPT2Block"]}\n',
        ending="json",
    ),
    Shape(
        "torch_xla's FSDP",
        "fsdp: full_shard\nlearning_rate: 1.0\nfsdp_config: {xla: true, xla_fsdp_grad_ckpt: true}\n",
    ),
    Shape(
        "a path in fsdp_config",
        "learning_rate: 1.0\nfsdp: full_shard\nfsdp_config: fsdp.json\n",
        "learning_rate: 1.0\nfsdp: true\nfsdp_config: fsdp.json\n",
    ),
    Shape(
        "a path in fsdp_config, and settings beside it",
        "learning_rate: 1.0\nfsdp: full_shard\nfsdp_config: fsdp.json\nfsdp_min_num_params: 100\n",
        says="is moved into fsdp_config, without its prefix",
    ),
    Shape(
        "another library's fsdp_config",
        "max_seq_len: 64\nfsdp_config:\n  sharding_strategy: FULL_SHARD\n  mixed_precision: PURE\n  verbose: true\n",
    ),
    Shape(
        "hybrid sharding in transformers",
        "learning_rate: 1.0\nfsdp: hybrid_shard auto_wrap\n",
        says="ParallelismConfig",
    ),
    Shape(
        "hybrid sharding in axolotl",
        "base_model: m\nfsdp: [hybrid_shard, auto_wrap]\n",
        says="needs fsdp_version 2 and its mesh",
    ),
    Shape(
        "hybrid sharding of a plugin",
        "from accelerate import FullyShardedDataParallelPlugin\n\n"
        "plugin = FullyShardedDataParallelPlugin(sharding_strategy='HYBRID_SHARD')\n",
        says="Accelerator(parallelism_config=ParallelismConfig(...))",
        ending="py",
    ),
    Shape(
        "no sharding in transformers",
        "learning_rate: 1.0\nfsdp: no_shard\nfsdp_config:\n  min_num_params: 0\n",
        "learning_rate: 1.0\n",
    ),
    Shape(
        "the line ends of Windows",
        _with_strategy("FULL_SHARD  # a").replace("\n", "\r\n"),
        _resharding("true  # a").replace("\n", "\r\n"),
    ),
    Shape(
        "in a list",
        "runs:\n- fsdp: full_shard auto_wrap\n  learning_rate: 1.0\n",
        """\
runs:
- fsdp_config:
    version: 2
    reshard_after_forward: true
  fsdp: true
  learning_rate: 1.0
""",
    ),
    Shape(
        "JSON with tabs",
        '{\n\t"distributed_type": "FSDP",\n\t"num_processes": 2,\n\t"fsdp_config": {\n\t\t'
        '"fsdp_use_orig_params": true\n\t}\n}\n',
        '{\n\t"distributed_type": "FSDP",\n\t"num_processes": 2,\n\t"fsdp_config": {\n\t\t"fsdp_version": 2,'
        ' "fsdp_state_dict_type": "FULL_STATE_DICT"\n\t}\n}\n',
        ending="json",
    ),
    Shape(
        "a plugin",
        """\
from accelerate import FullyShardedDataParallelPlugin
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, ShardingStrategy

plugin = FullyShardedDataParallelPlugin(
    sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
    backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
    forward_prefetch=False,
    cpu_offload=CPUOffload(offload_params=True),
    auto_wrap_policy="transformer_based_wrap",
    transformer_cls_names_to_wrap=["GPT2Block"],  # a unit a layer
)
""",
        """\
from accelerate import FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2,
    state_dict_type="FULL_STATE_DICT",
    reshard_after_forward=False,
    cpu_offload=True,
    auto_wrap_policy="transformer_based_wrap",
    transformer_cls_names_to_wrap=["GPT2Block"],  # a unit a layer
)
""",
        ending="py",
    ),
    Shape(
        "a call of TrainingArguments",
        """\
from transformers import TrainingArguments

config = {"limit_all_gathers": True, "xla": False}
arguments = TrainingArguments(
    use_cpu=True,
    fsdp=["shard_grad_op", "auto_wrap"],
    fsdp_transformer_layer_cls_to_wrap="GPT2Block",  # a unit a layer
    fsdp_config=config,
)
""",
        """\
from transformers import TrainingArguments

config = {"version": 2, "reshard_after_forward": False, "transformer_layer_cls_to_wrap": "GPT2Block", "xla": False}
arguments = TrainingArguments(
    use_cpu=True,
    fsdp=True,
    # a unit a layer
    fsdp_config=config,
)
""",
        ending="py",
    ),
)  # fmt: skip
