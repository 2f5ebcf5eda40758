"""Settings of transformers, Accelerate, axolotl, Composer and Lightning, which their releases read in different ways."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """One file that sets FSDP1.

    Attributes:
        library: what reads it.
        title: in a few words.
        text: its text.
        ending: of the file's name.
    """

    library: str
    title: str
    text: str
    ending: str = "yaml"


def _arguments(*lines: str, before: str = "") -> str:
    given = "".join(f"    {line},\n" for line in lines)
    return (
        f"from transformers import TrainingArguments\n\n{before}arguments = TrainingArguments(\n"
        f'    output_dir="out",\n    use_cpu=True,\n{given})\n'
    )


def _plugin(*lines: str, names: str = "") -> str:
    given = "".join(f"    {line},\n" for line in lines)
    imported = f"from torch.distributed.fsdp import {names}\n" if names else ""
    name = "FullyShardedDataParallelPlugin"
    return f"import torch\nfrom accelerate import {name}\n{imported}\nplugin = {name}(\n{given})\n"


TRANSFORMERS = [
    Settings(
        "transformers", "full_shard auto_wrap", _arguments('fsdp="full_shard auto_wrap"'), "py"
    ),
    Settings("transformers", "full_shard, one unit", _arguments('fsdp="full_shard"'), "py"),
    Settings(
        "transformers",
        "shard_grad_op, offload and flags",
        _arguments(
            'fsdp="shard_grad_op auto_wrap offload"',
            'fsdp_config={"transformer_layer_cls_to_wrap": ["GPT2Block"], "backward_prefetch": "backward_pre"}',
        ),
        "py",
    ),
    Settings(
        "transformers",
        "a list, and units by size",
        _arguments('fsdp=["full_shard", "auto_wrap"]', 'fsdp_config={"min_num_params": 2000}'),
        "py",
    ),
    Settings(
        "transformers",
        "a dictionary that is unpacked",
        "from transformers import TrainingArguments\n\n"
        'config = {\n    "output_dir": "out",\n    "use_cpu": True,\n    "fsdp": "shard_grad_op auto_wrap",\n}\n'
        "arguments = TrainingArguments(**config)\n",
        "py",
    ),
    Settings(
        "transformers",
        "checkpointing and loading on rank 0",
        _arguments(
            'fsdp="full_shard auto_wrap"',
            'fsdp_config={"activation_checkpointing": True, "cpu_ram_efficient_loading": True, "sync_module_states": True}',
        ),
        "py",
    ),
    Settings("transformers", "no_shard", _arguments('fsdp="no_shard"'), "py"),
    Settings(
        "transformers", "hybrid_shard auto_wrap", _arguments('fsdp="hybrid_shard auto_wrap"'), "py"
    ),
    Settings(
        "transformers",
        "a recipe in YAML",
        "output_dir: out\nuse_cpu: true\nlearning_rate: 1.0e-4\nfsdp: full_shard auto_wrap  # ZeRO-3\nfsdp_config:\n"
        "  fsdp_transformer_layer_cls_to_wrap: GPT2Block\n  fsdp_backward_prefetch: backward_pre\n",
    ),
    Settings(
        "transformers",
        "a recipe with anchors",
        "common: &common\n  transformer_layer_cls_to_wrap: GPT2Block\n  use_orig_params: true\ntrain:\n  output_dir: out\n"
        "  use_cpu: true\n  learning_rate: 1.0\n  fsdp: shard_grad_op auto_wrap\n  fsdp_config:\n    <<: *common\n",
    ),
    Settings(
        "transformers",
        "a recipe in JSON",
        '{\n  "output_dir": "out",\n  "use_cpu": true,\n  "learning_rate": 0.1,\n'
        '  "fsdp": ["full_shard", "auto_wrap", "offload"],\n'
        '  "fsdp_config": {"limit_all_gathers": true, "forward_prefetch": false}\n}\n',
        "json",
    ),
    Settings(
        "transformers",
        "a layer's class beside fsdp",
        _arguments('fsdp="full_shard auto_wrap"', 'fsdp_transformer_layer_cls_to_wrap="GPT2Block"'),
        "py",
    ),
]


_WHOLE = "  fsdp_state_dict_type: FULL_STATE_DICT\n"


def _file(settings: str, machines: int = 1, processes: int = 4) -> str:
    return f"distributed_type: FSDP\nfsdp_config:\n{settings}num_machines: {machines}\nnum_processes: {processes}\n"


ACCELERATE = [
    Settings(
        "accelerate",
        "the questionnaire's file",
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\ndowncast_bf16: 'no'\nfsdp_config:\n"
        "  fsdp_activation_checkpointing: false\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
        "  fsdp_backward_prefetch: BACKWARD_PRE\n  fsdp_cpu_ram_efficient_loading: true\n  fsdp_forward_prefetch: false\n"
        "  fsdp_offload_params: false\n  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
        "  fsdp_sync_module_states: true\n  fsdp_transformer_layer_cls_to_wrap: GPT2Block\n  fsdp_use_orig_params: true\n"
        "machine_rank: 0\nmain_training_function: main\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 4\n",
    ),
    Settings(
        "accelerate",
        "SHARD_GRAD_OP by number, offloaded",
        _file("  fsdp_sharding_strategy: 2\n  fsdp_offload_params: true\n"),
    ),
    Settings(
        "accelerate",
        "fsdp_version 1",
        _file("  fsdp_version: 1\n  fsdp_sharding_strategy: FULL_SHARD\n" + _WHOLE),
    ),
    Settings("accelerate", "no type of state dict", _file("  fsdp_offload_params: false\n")),
    Settings(
        "accelerate",
        "units by size",
        _file("  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n  fsdp_min_num_params: 2000\n" + _WHOLE),
    ),
    Settings(
        "accelerate",
        "HYBRID_SHARD, two nodes",
        _file("  fsdp_sharding_strategy: HYBRID_SHARD\n", 2, 8),
    ),
    Settings("accelerate", "NO_SHARD", _file("  fsdp_sharding_strategy: NO_SHARD\n")),
    Settings(
        "accelerate",
        "a file in JSON",
        '{\n  "distributed_type": "FSDP",\n  "fsdp_config": {\n    "fsdp_sharding_strategy": "SHARD_GRAD_OP",\n'
        '    "fsdp_transformer_layer_cls_to_wrap": "GPT2Block",\n    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"\n  },\n'
        '  "num_machines": 1,\n  "num_processes": 2\n}\n',
        "json",
    ),
    Settings(
        "accelerate",
        "anchors",
        _file(
            "  fsdp_use_orig_params: &yes true\n  fsdp_sharding_strategy: &how SHARD_GRAD_OP\n"
            + _WHOLE
        ),
    ),
    Settings(
        "accelerate",
        "a plugin with a strategy",
        _plugin(
            "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP",
            "use_orig_params=True",
            names="ShardingStrategy",
        ),
        "py",
    ),
    Settings(
        "accelerate",
        "a plugin with MixedPrecision",
        _plugin(
            "mixed_precision_policy=MixedPrecision(\n        param_dtype=torch.bfloat16,\n        reduce_dtype=torch.float32,\n"
            "        buffer_dtype=torch.bfloat16,\n    )",
            'auto_wrap_policy="transformer_based_wrap"',
            'transformer_cls_names_to_wrap=["GPT2Block"]',
            names="MixedPrecision",
        ),
        "py",
    ),
    Settings(
        "accelerate",
        "a plugin with CPUOffload",
        _plugin(
            "cpu_offload=CPUOffload(offload_params=True)",
            'auto_wrap_policy="size_based_wrap"',
            "min_num_params=2000",
            "forward_prefetch=False",
            names="CPUOffload",
        ),
        "py",
    ),
]

AXOLOTL = [
    Settings("axolotl", "a list of words", "base_model: m\nfsdp: [full_shard, auto_wrap]\n"),
    Settings(
        "axolotl",
        "a list with offload",
        "base_model: m\nfsdp:\n  - full_shard\n  - auto_wrap\n  - offload\n",
    ),
    Settings(
        "axolotl",
        "a list and settings",
        "base_model: m\nfsdp:\n  - full_shard\n  - auto_wrap\nfsdp_config:\n  fsdp_limit_all_gathers: true\n"
        "  fsdp_sync_module_states: true\n  fsdp_offload_params: true\n  fsdp_use_orig_params: false\n"
        "  fsdp_cpu_ram_efficient_loading: true\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
        "  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n  fsdp_state_dict_type: FULL_STATE_DICT\n"
        "  fsdp_sharding_strategy: FULL_SHARD\n",
    ),
    Settings(
        "axolotl",
        "a list, sharded states",
        "base_model: m\nfsdp: [full_shard, auto_wrap]\nfsdp_config:\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n",
    ),
    Settings(
        "axolotl",
        "fsdp_version 1 and settings",
        "base_model: m\nfsdp_version: 1\nfsdp_config:\n  offload_params: true\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
        "  state_dict_type: FULL_STATE_DICT\n",
    ),
    Settings(
        "axolotl",
        "activation checkpointing",
        "base_model: m\nfsdp: [full_shard, auto_wrap]\nfsdp_config:\n  fsdp_activation_checkpointing: true\n"
        "  fsdp_state_dict_type: FULL_STATE_DICT\n",
    ),
    Settings("axolotl", "shard_grad_op", "base_model: m\nfsdp: [shard_grad_op, auto_wrap]\n"),
    Settings("axolotl", "one unit", "base_model: m\nfsdp: [full_shard]\nfsdp_config:\n" + _WHOLE),
    Settings("axolotl", "no_shard", "base_model: m\nfsdp: [no_shard]\n"),
    Settings("axolotl", "hybrid_shard", "base_model: m\nfsdp: [hybrid_shard, auto_wrap]\n"),
    Settings(
        "axolotl",
        "anchors",
        "base_model: m\nfsdp: &words [full_shard, auto_wrap]\nfsdp_config: &more\n" + _WHOLE,
    ),
    Settings(
        "axolotl",
        "an optimizer of bitsandbytes",
        "base_model: m\noptimizer: paged_adamw_8bit\nfsdp: [full_shard, auto_wrap]\n",
    ),
]


def _composer(title: str, *lines: str) -> Settings:
    given = "".join(f"  {line}\n" for line in lines)
    return Settings("composer", title, f"max_duration: 1ep\nfsdp_config:\n{given}")


COMPOSER = [
    _composer("FULL_SHARD", "sharding_strategy: FULL_SHARD"),
    _composer("SHARD_GRAD_OP", "sharding_strategy: SHARD_GRAD_OP", "mixed_precision: DEFAULT"),
    _composer("no strategy", "mixed_precision: PURE"),
    _composer(
        "a recipe of llm-foundry",
        "sharding_strategy: FULL_SHARD",
        "mixed_precision: PURE",
        "activation_checkpointing: true",
        "activation_checkpointing_reentrant: false",
        "activation_cpu_offload: true",
        "limit_all_gathers: true",
    ),
    _composer("HYBRID_SHARD", "sharding_strategy: HYBRID_SHARD", "mixed_precision: PURE"),
    _composer("copies by their number", "data_parallel_replicate_degree: 2", "verbose: true"),
    _composer("NO_SHARD", "sharding_strategy: NO_SHARD"),
    _composer("sharded states", "sharding_strategy: FULL_SHARD", "state_dict_type: sharded"),
    _composer("loading on rank 0", "load_monolith_rank0_only: true", "sync_module_states: true"),
    _composer("offloading", "sharding_strategy: FULL_SHARD", "cpu_offload: true"),
    _composer("prefetching", "backward_prefetch: BACKWARD_PRE", "forward_prefetch: true"),
    Settings(
        "composer",
        "parallelism_config",
        "parallelism_config:\n  fsdp:\n    sharding_strategy: SHARD_GRAD_OP\n    state_dict_type: full\n",
    ),
]

_DEVICES = 'accelerator="cuda", devices=2'


def _lightning(title: str, strategy: str, made_by: str = "Trainer", before: str = "") -> Settings:
    package = "fabric" if made_by == "Fabric" else "pytorch"
    imported = f"from lightning.{package} import {made_by}\n"
    if "FSDPStrategy" in strategy + before:
        imported += f"from lightning.{package}.strategies import FSDPStrategy\n"
    made = f"made = {made_by}({strategy}, {_DEVICES})\n"
    return Settings("lightning", title, f"{imported}\n{before}{made}", "py")


LIGHTNING = [
    _lightning("a name", 'strategy="fsdp"'),
    _lightning("a name, offloaded", 'strategy="fsdp_cpu_offload"'),
    _lightning("Fabric, a name", 'strategy="fsdp"', "Fabric"),
    _lightning("the class", "strategy=FSDPStrategy()"),
    _lightning(
        "a strategy of sharding", 'strategy=FSDPStrategy(sharding_strategy="SHARD_GRAD_OP")'
    ),
    _lightning(
        "units by class",
        "strategy=FSDPStrategy(auto_wrap_policy={nn.Linear})",
        before="from torch import nn\n\n",
    ),
    _lightning("the class, offloaded", "strategy=FSDPStrategy(cpu_offload=True)"),
    _lightning("whole states", 'strategy=FSDPStrategy(state_dict_type="full")'),
    _lightning(
        "a dictionary that is unpacked", "**settings", before='settings = {"strategy": "fsdp"}\n'
    ),
    _lightning("a variable", "strategy=strategy", before='strategy = "fsdp"\n'),
    _lightning("Fabric, the class", "strategy=FSDPStrategy()", "Fabric"),
    Settings(
        "lightning",
        "a file of LightningCLI",
        "trainer:\n  accelerator: cuda\n  devices: 2\n  strategy: fsdp\n",
    ),
]

SETTINGS = [*TRANSFORMERS, *ACCELERATE, *AXOLOTL, *COMPOSER, *LIGHTNING]
