"""Why `verify` has no verdict."""

from fsdp_migrate.exit_codes import Unusable


class Unverifiable(Unusable):
    """The request cannot be met: a missing file, no torch, no such device. One clear line."""


class ProgramFailed(Exception):
    """A program, `original` or `migrated`, failed or did not end: why in one line, and what its ranks said last."""

    def __init__(self, which: str, reason: str, details: str) -> None:
        super().__init__(which, reason, details)
        self.which = which
        self.reason = reason
        self.details = details

    def __str__(self) -> str:
        return f"the {self.which} program failed: {self.reason}"
