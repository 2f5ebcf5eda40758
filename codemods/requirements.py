"""The rules for what a project asks for beside its code: files of requirements, environments and images."""

from fsdp_migrate.codemods.rule import Rule

TORCH = Rule("FSDP901", "torch-requirement")
RUNTIME = Rule("FSDP902", "runtime-requirement")
RULES = (TORCH, RUNTIME)
