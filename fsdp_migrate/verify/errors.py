"""Why `verify` has no verdict."""

from __future__ import annotations


class Unverifiable(Exception):
    """The request cannot be met: a missing file, no torch, no such device. One clear line."""


class ProgramFailed(Exception):
    """A program failed or did not end.

    Attributes:
        which: `original` or `migrated`.
        reason: one line, as in `rank 1 raised ValueError`.
        details: the last lines of the rank that failed, or where each rank was.
        timed_out: whether it did not end in its time.
    """

    timed_out = False

    def __init__(self, which: str, reason: str, details: str) -> None:
        super().__init__(f"the {which} program failed: {reason}")
        self.which = which
        self.reason = reason
        self.details = details
