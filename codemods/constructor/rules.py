"""The rules of the call itself."""

from __future__ import annotations

from fsdp_migrate.codemods.rule import Rule

CONSTRUCTOR = Rule(
    "FSDP002",
    "fsdp1-constructor",
    "FSDP(model, ...) runs on the bridge, or becomes fully_shard(model, ...)",
)
UNPACKED = Rule(
    "FSDP004",
    "dynamic-constructor",
    "the runtime binds arguments that come from an unpacked dictionary",
)
UNKNOWN = Rule("FSDP019", "unknown-argument", "an argument that FSDP1 does not have")
