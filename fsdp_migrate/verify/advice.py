"""What follows from a result: which file to change, where the migrated program is, and how to compare again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fsdp_migrate.settings import DEFAULT_FORM
from fsdp_migrate.verify import clipping
from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.next_steps import NextSteps
from fsdp_migrate.verify.verdict import Verdict

_COPIED = "Your files are unchanged: the migrated program was a temporary copy."
_MISSING = re.compile(r"\b(?:FileNotFound|ModuleNotFound)Error\b")
_SHOWN = 3
"""At most so many files are named."""


@dataclass(frozen=True)
class Programs:
    """The programs as the user named them.

    Attributes:
        original: a script, or a folder, in which `entry` is the script.
        migrated: None if the tool migrated a temporary copy.
        changed: the files that it changed there, relative to the folder.
        left: how many findings it left to the user.
    """

    original: Path
    migrated: Path | None
    form: str = DEFAULT_FORM
    entry: Path | None = None
    changed: Sequence[str] = ()
    left: int = 0

    def after(self, verdict: Verdict) -> NextSteps:
        """What to do after a verdict."""
        ran = {file for rank in verdict.migrated.ranks for file in rank.files}
        changed = [file for file in self.changed if file in ran]
        return replace(self, changed=changed)._after(verdict)

    def after_failure(self, failure: ProgramFailed) -> NextSteps:
        """What to do where one of the programs failed."""
        if failure.which == "original":
            state = "Nothing was compared: the program fails before any migration."
            at = _failed(self.original, failure.place)
            copied = ""
            if _MISSING.search(failure.reason):
                copied = self._copied
            repair = f"Repair the original{at}, or what it needs: arguments, files, packages.{copied} Then verify again."
            return NextSteps(state, (repair,))
        how = ""
        if failure.found:
            how = ", as the finding says"
        elif failure.others:
            how = "; a finding may say how"
        at = _failed(self.migrated or self.original, failure.place)
        if self.migrated is None:
            following = self._repair(f"Repair what failed{at}{how}.")
        else:
            following = self._repair(f"Repair the migrated program{at}{how}.")
        return NextSteps(f"Nothing was compared. {following.state}".rstrip(), following.steps)

    def _after(self, verdict: Verdict) -> NextSteps:
        if verdict.equal:
            return self._after_same(verdict)
        if not verdict.deterministic:
            change = f"Change {self._original} until two runs of it are equal. Then verify again."
            return NextSteps("Whether the migration is right is not known.", (change,))
        if verdict.cause is not None and verdict.cause.name == "rounding":
            return self._repair(
                f"Train for more steps. If the difference grows, look for its cause in {self._migrated}."
            )
        numbered = ""
        if self.migrated is None:
            numbered = " Lines above are numbered as in the original."
        return self._repair(f"Change {self._migrated} as the cause says.{numbered}")

    def _after_same(self, verdict: Verdict) -> NextSteps:
        steps = [*self._unproved(verdict)]
        if self.migrated is None:
            return NextSteps(_COPIED, (*steps, self._write))
        use = f"Use {self._migrated} in place of {self._original}. Nothing needs a change."
        if steps:
            use = f"Use {self._migrated} in place of {self._original}."
        return NextSteps("", (*steps, use))

    def _unproved(self, verdict: Verdict) -> Iterator[str]:
        """What the user must look at, although both programs train the same."""
        if any(not line.cause for line in verdict.printed):
            yield "Look at the code that prints what differs without a known cause."
        if clipping.unproved(verdict.original, verdict.migrated):
            yield "Verify again with more steps, until a gradient reaches the limit: this run did not test clipping."
        if self.left:
            if self.left == 1:
                findings = "the finding that needs you"
            else:
                findings = f"the {self.left} findings that need you"
            check = f"`fsdp-migrate check {self._files_and_form}`"
            yield f"Read {findings}: {check}. It changes no training in this run."

    def _repair(self, repair: str) -> NextSteps:
        """The steps around a repair of the migrated program."""
        if self.migrated is not None:
            return NextSteps("", (f"{repair} Leave {self._original} as it is, and verify again.",))
        again = f"fsdp-migrate verify ORIGINAL --migrated {_quoted(self.original)}"
        if self.entry is not None:
            again += f" --entry {_quoted(self.entry)}"
        compare = f"Compare with ORIGINAL, a copy of the program from before step 1: `{again}`, with the options of this run"
        return NextSteps(_COPIED, (self._write, repair, compare))

    @property
    def _copied(self) -> str:
        """How to bring along what is not in the copies."""
        if self.original.is_dir():
            return " What git ignores is not in the copy of the repository: `--link PATH` links it."
        return (
            " It ran in a copy of its folder: if it needs files from outside, verify the folder that holds all of them, "
            f"with `--entry {self.original.name}`."
        )

    @property
    def _write(self) -> str:
        return f"Write the migration into {self._named}: `fsdp-migrate {self._files_and_form}`"

    @property
    def _original(self) -> str:
        return f"the original ({self.original / (self.entry or '')})"

    @property
    def _migrated(self) -> str:
        """The migrated program: the user's own, or what the first step makes of the user's files."""
        if self.migrated is None:
            return self._named
        return f"the migrated program ({self.migrated / (self.entry or '')})"

    @property
    def _files(self) -> Path:
        """What the migration changes: the script alone, or all of its folder."""
        if self.original.is_dir() or [*self.changed] == [self.original.name]:
            return self.original
        return self.original.parent

    @property
    def _named(self) -> str:
        if self._files == self.original and not self.original.is_dir():
            return str(self._files)
        return f"your files ({', '.join(self.changed[:_SHOWN])})"

    @property
    def _files_and_form(self) -> str:
        chosen = ""
        if self.form != DEFAULT_FORM:
            chosen = f" --form {self.form}"
        return f"{_quoted(self._files)}{chosen}"


def _failed(program: Path, place: str) -> str:
    """Where a program failed, as a path of the user's: ` at v2/train.py:37`, or the program itself in brackets."""
    if not place:
        return f" ({program})"
    if program.is_dir():
        return f" at {program / place}"
    return f" at {program.parent / place}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
