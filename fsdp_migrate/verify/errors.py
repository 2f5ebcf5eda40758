"""Why `verify` has no verdict."""

from fsdp_migrate.exit_codes import Unusable
from fsdp_migrate.verify.next_steps import NextSteps
from fsdp_migrate.verify.where.lines import Line
from fsdp_migrate.verify.where.text import in_words


class Unverifiable(Unusable):
    """The request cannot be met: a missing file, no torch, no such device. One clear line."""


class ProgramFailed(Exception):
    """A program, `original` or `migrated`, failed or did not end.

    Attributes:
        reason: why, in one line.
        details: what its ranks said last.
        trace: the traceback, or what was printed, as it was.
        hints: what else a reader should know, a line each.
        place: the line of the user's program that it failed at, as `file:line`; empty if none is known.
        written: the number of that line in the migrated copy; 0 where there is no copy.
        found: the findings on that line, or on what it uses, in words.
        others: what else the migration left to the user, if there is none on that line.
        default_form: whether a finding says that the default form keeps what FSDP1 did.
        where: the lines that differed before a migrated program failed.
        next: what to do now.
    """

    def __init__(self, which: str, reason: str, details: str, trace: str = "") -> None:
        super().__init__(which, reason, details)
        self.which = which
        self.reason = reason
        self.details = details
        self.trace = trace
        self.hints: list[str] = []
        self.place = ""
        self.written = 0
        self.found: list[str] = []
        self.others: list[str] = []
        self.default_form = False
        self.where: list[Line] = []
        self.next = NextSteps()

    @property
    def before(self) -> list[str]:
        """What differed before, in words."""
        return [text for text, _ in in_words(self.where, verbose=True)]

    def __str__(self) -> str:
        found = [f"finding: {text}" for text in self.found]
        if len(self.others) == 1:
            found.append(f"A finding may explain it: {self.others[0]}")
        elif self.others:
            number = len(self.others)
            found.append(f"{number} findings may explain it. The first one: {self.others[0]}")
        return "\n".join([f"the {self.which} program failed: {self.reason}", *self.hints, *found])
