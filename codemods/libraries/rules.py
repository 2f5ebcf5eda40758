"""The rules about FSDP1 that another library calls, for files and for Python."""

from __future__ import annotations

from fsdp_migrate.codemods.rule import Example, Rule

ACCELERATE = Rule(
    "FSDP801",
    "accelerate-config",
    "an Accelerate configuration becomes version 2",
    """Accelerate takes FSDP1 unless `fsdp_version` is 2. There `fsdp_reshard_after_forward` says what the strategy said: true
for FULL_SHARD, false for SHARD_GRAD_OP. (Under version 1 it took a strategy's name too, which Accelerate 1.15 passes over:
what the file says is written.) HYBRID_SHARD also needs a mesh of nodes and devices, `parallelism_config`, and
NO_SHARD is DistributedDataParallel, `MULTI_GPU`: `accelerate to-fsdp2` loses both. The default of `fsdp_state_dict_type` was
FULL_STATE_DICT and is SHARDED_STATE_DICT, so it is written out. Settings that FSDP2 does not have go
(`FullyShardedDataParallelPlugin.__post_init__`). Comments and order stay. The same holds for dictionaries in Python.""",
    (
        Example(
            "a file",
            """\
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP  # a unit a layer
  fsdp_forward_prefetch: false
  fsdp_sharding_strategy: SHARD_GRAD_OP  # ZeRO-2
num_processes: 8
""",
            """\
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP  # a unit a layer
  fsdp_reshard_after_forward: false  # ZeRO-2
num_processes: 8
""",
            file="fsdp.yaml",
        ),
        Example(
            "hybrid sharding",
            """\
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: HYBRID_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
num_machines: 2
num_processes: 16
""",
            """\
distributed_type: FSDP
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 8
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
num_machines: 2
num_processes: 16
""",
            file="hybrid.yaml",
        ),
        Example(
            "no sharding",
            """\
{"distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": 3}, "num_processes": 8}
""",
            """\
{"distributed_type": "MULTI_GPU", "num_processes": 8}
""",
            file="ddp.json",
        ),
    ),
)
TRANSFORMERS = Rule(
    "FSDP802",
    "training-arguments",
    "TrainingArguments(fsdp=..., fsdp_config=...) becomes version 2",
    """From transformers 5.10, `fsdp` only says whether FSDP is used and `fsdp_config` how, and strings in `fsdp` are refused
from 5.20 on. Version 2 is written out, since it was not the default before. `full_shard` is `reshard_after_forward: true`,
`shard_grad_op` is false, `offload` is `cpu_offload: true`, `auto_wrap` says nothing. `no_shard` is DistributedDataParallel:
without FSDP. `hybrid_shard` needs a mesh, which only its user knows. Arguments such as `fsdp_min_num_params` moved
(`TrainingArguments._process_fsdp_args`). `xla_fsdp_v2` is another FSDP and stays.""",
    (
        Example(
            "a call",
            """\
from transformers import TrainingArguments

arguments = TrainingArguments(
    output_dir="out",
    fsdp="shard_grad_op auto_wrap offload",
    fsdp_config={
        "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
        "limit_all_gathers": True,
    },
)
""",
            """\
from transformers import TrainingArguments

arguments = TrainingArguments(
    output_dir="out",
    fsdp=True,
    fsdp_config={
        "version": 2,
        "reshard_after_forward": False,
        "cpu_offload": True,
        "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
    },
)
""",
        ),
        Example(
            "a recipe",
            """\
fsdp: full_shard auto_wrap
fsdp_transformer_layer_cls_to_wrap: GPT2Block
""",
            """\
fsdp_config:
  version: 2
  reshard_after_forward: true
  transformer_layer_cls_to_wrap: GPT2Block
fsdp: true
""",
            file="recipe.yaml",
        ),
        Example(
            "only a run knows whether",
            """\
arguments = dict(fsdp="full_shard auto_wrap" if gpus > 1 else "")
""",
            message="reshard_after_forward",
        ),
    ),
)
AXOLOTL = Rule(
    "FSDP803",
    "axolotl-config",
    "axolotl's FSDP settings become version 2",
    """axolotl takes `fsdp_version` at the top level, and all else from `fsdp_config`, with or without the prefix `fsdp_`. The
list `fsdp` is deprecated: what it says goes into `fsdp_config`.""",
    (
        Example(
            "a list of options",
            """\
base_model: Qwen/Qwen2.5-0.5B
fsdp:
  - full_shard
  - auto_wrap
fsdp_config:
  fsdp_limit_all_gathers: true
  fsdp_offload_params: true
  fsdp_state_dict_type: FULL_STATE_DICT
""",
            """\
base_model: Qwen/Qwen2.5-0.5B
fsdp_version: 2
fsdp_config:
  fsdp_reshard_after_forward: true
  fsdp_offload_params: true
  fsdp_state_dict_type: FULL_STATE_DICT
""",
            file="axolotl.yaml",
        ),
    ),
)
PLUGIN = Rule(
    "FSDP804",
    "accelerate-plugin",
    "FullyShardedDataParallelPlugin becomes version 2",
    """The plugin's arguments are those of the configuration file. With version 2, Accelerate does not call a policy that it is
given: it compares it with torch's functions and takes the classes from `transformer_cls_names_to_wrap`
(`fsdp2_prepare_auto_wrap_policy`), so a policy that is no name is for a person, as is a MixedPrecision of FSDP1. Under
version 2, a model and its optimizer must go through one call of `prepare`.""",
    (
        Example(
            "strategy and offloading",
            """\
from accelerate import FullyShardedDataParallelPlugin
from torch.distributed.fsdp import CPUOffload, ShardingStrategy

plugin = FullyShardedDataParallelPlugin(
    sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
    cpu_offload=CPUOffload(offload_params=True),
    use_orig_params=True,
    state_dict_type="SHARDED_STATE_DICT",
)
""",
            """\
from accelerate import FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2,
    reshard_after_forward=False,
    cpu_offload=True,
    state_dict_type="SHARDED_STATE_DICT",
)
""",
        ),
        Example(
            "a policy",
            """\
from accelerate import FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin(auto_wrap_policy=by_layer)
""",
            message="transformer_cls_names_to_wrap",
        ),
        Example(
            "what the environment says",
            """\
from accelerate import FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin()
""",
            message="pass fsdp_version=2",
        ),
    ),
)
FLAGS = Rule(
    "FSDP805",
    "launch-flags",
    "flags and variables of a launch are reported with what to write",
    """`accelerate launch --use_fsdp` takes FSDP1 unless `--fsdp_version 2` is given, and so do scripts whose environment has
`ACCELERATE_USE_FSDP`. A shell script is not rewritten: what a variable holds, only a run knows.""",
    (
        Example(
            "Accelerate's flags",
            """\
accelerate launch --use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP train.py
""",
            message="add --fsdp_version 2",
            file="launch.sh",
        ),
    ),
)
LIGHTNING = Rule(
    "FSDP806",
    "lightning-strategy",
    "Lightning's FSDPStrategy is FSDP1: ModelParallelStrategy takes its place, by hand",
    """Lightning has no FSDP2 strategy of that name. `ModelParallelStrategy` calls `configure_model` of the module, which
shards itself:

```python
def configure_model(self):
    for layer in self.layers:
        fully_shard(layer, mesh=self.device_mesh["data_parallel"])
    fully_shard(self, mesh=self.device_mesh["data_parallel"])

Trainer(strategy=ModelParallelStrategy(data_parallel_size=8, tensor_parallel_size=1))
```

Its defaults shard over nodes only, so both sizes are given. A wrap policy, activation checkpointing, offloading and mixed
precision are arguments of `fully_shard`; `state_dict_type="full"` is `save_distributed_checkpoint=False`.""",
    (
        Example(
            "by name",
            """\
from lightning.pytorch import Trainer

trainer = Trainer(strategy="fsdp", devices=8)
""",
            message="ModelParallelStrategy",
        ),
        Example(
            "in a file",
            """\
trainer:
  accelerator: gpu
  strategy: fsdp
""",
            message="ModelParallelStrategy",
            file="trainer.yaml",
        ),
    ),
)
VERL = Rule(
    "FSDP807",
    "verl-strategy",
    "verl's strategy fsdp is FSDP1: fsdp2 takes its place, by hand",
    """verl shards with `fully_shard` where `strategy` is `fsdp2`, and reads the same `fsdp_config`. Its wrap policy by size,
a policy of its own for LoRA and `forward_prefetch` have no effect there, so a person decides.""",
    (
        Example(
            "an override",
            """\
python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.strategy=fsdp
""",
            message="actor_rollout_ref.actor.strategy=fsdp2",
            file="ppo.sh",
        ),
    ),
)
RULES = (ACCELERATE, TRANSFORMERS, AXOLOTL, PLUGIN, FLAGS, LIGHTNING, VERL)
BY_CODE = {rule.code: rule for rule in RULES}
