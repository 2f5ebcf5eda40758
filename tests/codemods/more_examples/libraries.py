"""Programs for the rules of `codemods/libraries`."""

from ..pages import Example

ALSO = {
    "FSDP801": (
        Example(
            "what FSDP2 cannot save",
            """\
distributed_type: FSDP
fsdp_config:
  fsdp_state_dict_type: LOCAL_STATE_DICT
""",
            message="LOCAL_STATE_DICT has no FSDP2 form",
            file="local.yaml",
        ),
    ),
    "FSDP802": (
        Example(
            "the default of an argument",
            """\
from dataclasses import dataclass, field

from transformers import TrainingArguments


@dataclass
class Arguments(TrainingArguments):
    fsdp: str = field(default="full_shard auto_wrap", metadata={"help": "how to shard"})
""",
            message="is FSDP1 by default: True there",
        ),
    ),
}

QUIET = {
    "FSDP801": (
        Example(
            "version 2, and FSDP that is not on",
            """\
distributed_type: 'NO'
fsdp_config:
  fsdp_sync_module_states: false
---
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}
""",
            file="second.yaml",
        ),
    ),
    "FSDP802": (
        Example(
            "version 2, and FSDP that is not on",
            """\
arguments = TrainingArguments(fsdp=True, fsdp_config={"version": 2})
parser.add_argument("--data_parallel", choices=["sdp", "fsdp"])
other = TrainingArguments(fsdp="", fsdp_config={"min_num_params": 0})


class Arguments(TrainingArguments):
    fsdp: str = field(default="", metadata={"help": "full_shard"})
    fsdp: bool = True
""",
        ),
    ),
    "FSDP805": (
        Example(
            "a script's own flags",
            """\
# FSDP_SHARDING_STRATEGY=1
torchrun train.py --fsdp --dit_fsdp --data_parallel fsdp
accelerate launch --use_fsdp --fsdp_version 2 train.py
""",
            file="own.sh",
        ),
    ),
    "FSDP807": (
        Example(
            "a program's own word",
            """\
strategy: fsdp
fsdp_cpu_offload: true
""",
            file="own.yaml",
        ),
    ),
}
