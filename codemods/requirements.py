"""The rules for what a project asks for beside its code: files of requirements, environments and images."""

from fsdp_migrate.codemods.rule import Rule
from fsdp_migrate.findings import Severity

TORCH = Rule("FSDP901", "torch-requirement", Severity.RAISES)
RUNTIME = Rule("FSDP902", "runtime-requirement", Severity.RAISES)
