"""What a shape of a configuration is; and those of Accelerate's files, of each strategy and each way of writing them."""

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


def with_strategy(value: str, machines: int = 1, processes: int = 4) -> str:
    return f"""\
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: {value}
  fsdp_state_dict_type: FULL_STATE_DICT
num_machines: {machines}
num_processes: {processes}
"""


def resharding(value: str, machines: int = 1, processes: int = 4) -> str:
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
    return resharding(value, 2, 8).replace("fsdp_config:\n", mesh)


_UNSHARDED = "distributed_type: MULTI_GPU\nnum_machines: 1\nnum_processes: 4\n"

ACCELERATE = (
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
    Shape("FULL_SHARD", with_strategy("FULL_SHARD"), resharding("true")),
    Shape("SHARD_GRAD_OP", with_strategy("SHARD_GRAD_OP"), resharding("false")),
    Shape("NO_SHARD", with_strategy("NO_SHARD"), _UNSHARDED),
    Shape("HYBRID_SHARD, two nodes", with_strategy("HYBRID_SHARD", 2, 8), _hybrid("true")),
    Shape("HYBRID_SHARD, one node", with_strategy("HYBRID_SHARD"), resharding("true"), says="unless you add"),
    Shape(
        "HYBRID_SHARD, nodes not known",
        "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}\nnum_processes: 8\n",
        says="`dp_replicate_size` is the number of nodes",
    ),
    Shape(
        "HYBRID_SHARD_ZERO2, Accelerate's spelling",
        with_strategy("HYBRID_SHARD_ZERO2", 2, 8),
        _hybrid("false"),
    ),
    Shape(
        "_HYBRID_SHARD_ZERO2, torch's spelling",
        with_strategy("_HYBRID_SHARD_ZERO2", 2, 8),
        _hybrid("false"),
    ),
    Shape("a number", with_strategy("2"), resharding("false")),
    Shape("a number in quotes", with_strategy("'3'"), _UNSHARDED),
    Shape("lower case", with_strategy("full_shard"), resharding("true")),
    Shape(
        "a name that is none",
        with_strategy("${STRATEGY}"),
        says="The strategy is computed at run time",
    ),
    Shape(
        "NO_SHARD with offloading",
        with_strategy("NO_SHARD\n  fsdp_offload_params: true"),
        says="has no offloading and no activation checkpointing",
    ),
    Shape(
        "NO_SHARD with offloading in JSON",
        '{"distributed_type": "FSDP",\n "fsdp_config": {"fsdp_sharding_strategy": 3, "fsdp_offload_params": true}}\n',
        says="does what DistributedDataParallel does",
        ending="json",
    ),
    Shape(
        "the strategy under its newer name",
        with_strategy("FULL_SHARD").replace("sharding_strategy", "reshard_after_forward"),
        resharding("true"),
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
        with_strategy("FULL_SHARD").replace("FULL_STATE", "LOCAL_STATE"),
        says="Set SHARDED_STATE_DICT or FULL_STATE_DICT",
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
        "an anchor that is removed",
        with_strategy(
            "FULL_SHARD\n  fsdp_use_orig_params: &yes true\n  fsdp_offload_params: *yes"
        ),
        says="the result would not parse",
    ),
    Shape(
        "several documents",
        f"{with_strategy('FULL_SHARD')}---\ndistributed_type: MULTI_GPU\n---  # last\n{with_strategy('2')}",
        f"{resharding('true')}---\ndistributed_type: MULTI_GPU\n---  # last\n{resharding('false')}",
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
)  # fmt: skip
