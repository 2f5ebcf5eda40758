"""The shapes that configurations of FSDP1 have, each with what it becomes. Their order is that of docs/comparison.md."""

from __future__ import annotations

from .accelerate_shapes import ACCELERATE, Shape, resharding, with_strategy

SHAPES = (
    *ACCELERATE,
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
  state_dict_type: FULL_STATE_DICT
  offload_params: false
  reshard_after_forward: false
""",
    ),
    Shape(
        "axolotl, a part of a recipe",
        "fsdp_version: 1\nfsdp_config:\n  offload_params: true\n",
        "fsdp_version: 2\nfsdp_config:\n  state_dict_type: FULL_STATE_DICT\n  offload_params: true\n",
    ),
    Shape(
        "axolotl, and nothing is left",
        "base_model: x\nfsdp_config:\n  limit_all_gathers: true\n",
        "base_model: x\nfsdp_version: 2\nfsdp_config:\n  state_dict_type: FULL_STATE_DICT\n",
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
fsdp: "full_shard auto_wrap offload"  # ZeRO-3
fsdp_config:
  version: 2
  reshard_after_forward: true
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
        says="Write version 2 into `fsdp.json`, and `reshard_after_forward: true`",
    ),
    Shape(
        "a path in fsdp_config, and settings next to it",
        "learning_rate: 1.0\nfsdp: full_shard\nfsdp_config: fsdp.json\nfsdp_min_num_params: 100\n",
        says="Move it into `fsdp_config`, without its prefix",
    ),
    Shape(
        "another library's fsdp_config",
        "max_seq_len: 64\nfsdp_config:\n  sharding_strategy: FULL_SHARD\n  mixed_precision: PURE\n  verbose: true\n",
        says="This selects FSDP1 in Composer",
    ),
    Shape(
        "hybrid sharding in transformers",
        "learning_rate: 1.0\nfsdp: hybrid_shard auto_wrap\n",
        says="ParallelismConfig",
    ),
    Shape(
        "hybrid sharding in axolotl",
        "base_model: m\nfsdp: [hybrid_shard, auto_wrap]\n",
        says="Write `fsdp_version: 2` and the sizes of the mesh",
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
        with_strategy("FULL_SHARD  # a").replace("\n", "\r\n"),
        resharding("true  # a").replace("\n", "\r\n"),
    ),
    Shape(
        "in a list",
        "runs:\n- fsdp: full_shard auto_wrap\n  learning_rate: 1.0\n",
        """\
runs:
- fsdp_config:
    version: 2
    reshard_after_forward: true
  fsdp: full_shard auto_wrap
  learning_rate: 1.0
""",
    ),
    Shape(
        "JSON with tabs",
        '{\n\t"distributed_type": "FSDP",\n\t"num_processes": 2,\n\t"fsdp_config": {\n\t\t'
        '"fsdp_use_orig_params": true\n\t}\n}\n',
        '{\n\t"distributed_type": "FSDP",\n\t"num_processes": 2,\n\t"fsdp_config": {\n\t\t'
        '"fsdp_version": 2,\n\t\t"fsdp_state_dict_type": "FULL_STATE_DICT"\n\t}\n}\n',
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
    fsdp=["shard_grad_op", "auto_wrap"],
    # a unit a layer
    fsdp_config=config,
)
""",
        ending="py",
    ),
)  # fmt: skip
