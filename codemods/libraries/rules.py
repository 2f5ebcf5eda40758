"""The rules for programs that use FSDP1 through another library: for its configuration files, and for Python."""

from fsdp_migrate.codemods.rule import Rule
from fsdp_migrate.findings import Severity

ACCELERATE = Rule("FSDP801", "accelerate-config", Severity.RAISES)
TRANSFORMERS = Rule("FSDP802", "training-arguments", Severity.RAISES)
AXOLOTL = Rule("FSDP803", "axolotl-config", Severity.RAISES)
PLUGIN = Rule("FSDP804", "accelerate-plugin", Severity.RAISES)
FLAGS = Rule("FSDP805", "launch-flags", Severity.RAISES)
LIGHTNING = Rule("FSDP806", "lightning-strategy", Severity.RAISES)
VERL = Rule("FSDP807", "verl-strategy", Severity.RAISES)
MODEL = Rule("FSDP808", "accelerate-model", Severity.RAISES)
COMPOSER = Rule("FSDP809", "composer-config", Severity.RAISES)

# With a setting of theirs nothing raises unless its finding says so: FSDP1 goes on sharding the model.
OF_SETTINGS = frozenset(
    {ACCELERATE, TRANSFORMERS, AXOLOTL, PLUGIN, FLAGS, LIGHTNING, VERL, COMPOSER}
)
