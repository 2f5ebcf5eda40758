"""The rules for programs that use FSDP1 through another library: for its configuration files, and for Python."""

from __future__ import annotations

from fsdp_migrate.codemods.rule import Rule

ACCELERATE = Rule("FSDP801", "accelerate-config", "an Accelerate configuration becomes version 2")
TRANSFORMERS = Rule(
    "FSDP802",
    "training-arguments",
    "TrainingArguments(fsdp=..., fsdp_config=...) becomes version 2",
)
AXOLOTL = Rule("FSDP803", "axolotl-config", "axolotl's FSDP settings become version 2")
PLUGIN = Rule("FSDP804", "accelerate-plugin", "FullyShardedDataParallelPlugin becomes version 2")
FLAGS = Rule(
    "FSDP805", "launch-flags", "flags and variables of a launch are reported with what to write"
)
LIGHTNING = Rule(
    "FSDP806",
    "lightning-strategy",
    "Lightning's FSDPStrategy is FSDP1: ModelParallelStrategy takes its place, by hand",
)
VERL = Rule(
    "FSDP807", "verl-strategy", "verl's strategy fsdp is FSDP1: fsdp2 takes its place, by hand"
)
MODEL = Rule(
    "FSDP808",
    "accelerate-model",
    "a model that Accelerate shards by version 2 is prepared with its optimizer, and is no FSDP1",
)
RULES = (ACCELERATE, TRANSFORMERS, AXOLOTL, PLUGIN, FLAGS, LIGHTNING, VERL, MODEL)
BY_CODE = {rule.code: rule for rule in RULES}
