"""The rules for programs that use FSDP1 through another library: for its configuration files, and for Python."""

from fsdp_migrate.codemods.rule import Rule

ACCELERATE = Rule("FSDP801", "accelerate-config")
TRANSFORMERS = Rule("FSDP802", "training-arguments")
AXOLOTL = Rule("FSDP803", "axolotl-config")
PLUGIN = Rule("FSDP804", "accelerate-plugin")
FLAGS = Rule("FSDP805", "launch-flags")
LIGHTNING = Rule("FSDP806", "lightning-strategy")
VERL = Rule("FSDP807", "verl-strategy")
MODEL = Rule("FSDP808", "accelerate-model")
RULES = (ACCELERATE, TRANSFORMERS, AXOLOTL, PLUGIN, FLAGS, LIGHTNING, VERL, MODEL)
