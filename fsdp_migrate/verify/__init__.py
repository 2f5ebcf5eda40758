"""`verify`: runs a program before and after its migration and compares what it trained. Importable without torch."""

from fsdp_migrate.verify.errors import ProgramFailed, Unverifiable
from fsdp_migrate.verify.main import verify
from fsdp_migrate.verify.verdict import Verdict

__all__ = ["ProgramFailed", "Unverifiable", "Verdict", "verify"]
