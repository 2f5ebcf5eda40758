"""What follows from a result: which file to change, where the migrated program is, and how to compare again."""

from __future__ import annotations

import os
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
_LOST = re.compile(r"No such file or directory: '(.+?)'")
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
        left: the findings that it left to the user, as `FSDP507 at train.py:7`.
        options: those of this run, and the program's arguments, as they are typed.
    """

    original: Path
    migrated: Path | None
    form: str = DEFAULT_FORM
    entry: Path | None = None
    changed: Sequence[str] = ()
    left: Sequence[str] = ()
    options: str = ""

    def after(self, verdict: Verdict) -> NextSteps:
        """What to do after a verdict."""
        ran = {file for rank in verdict.migrated.ranks for file in rank.files}
        changed = [file for file in self.changed if file in ran]
        return replace(self, changed=changed)._after(verdict)

    def after_failure(self, failure: ProgramFailed) -> NextSteps:
        """What to do where one of the programs failed."""
        if failure.which == "original":
            return self._after_failed_original(failure)
        how = ""
        if failure.found:
            how = ", as the finding says"
        elif failure.where:
            how = f"; look first at {failure.where[0].place}, where it begins to differ"
        elif failure.others:
            how = "; a finding may say how"
        elif any(hint.startswith("cause: ") for hint in failure.hints):
            how = ", as the cause says"
        at = _failed(self.migrated or self.original, failure.place)
        if failure.written:
            at += f" (line {failure.written} once it is migrated)"
        if self.migrated is None:
            following = self._repair(f"Repair what failed{at}{how}.")
        else:
            following = self._repair(f"Repair the migrated program{at}{how}.")
        steps = [*following.steps]
        if self.form != DEFAULT_FORM and failure.default_form:
            default = replace(self, form=DEFAULT_FORM)
            steps.append(
                f"Instead of these steps, you can migrate without `--form {self.form}`: `{default._command}`"
            )
        return NextSteps(f"Nothing was compared. {following.state}".rstrip(), (*steps,))

    def _after_failed_original(self, failure: ProgramFailed) -> NextSteps:
        state = "Nothing was compared: the program fails before any migration."
        at = _failed(self.original, failure.place)
        repair = f"Repair the original{at}, or what it needs: arguments, files, packages."
        if lost := _LOST.search(failure.reason):
            if outside := self._outside(Path.cwd() / lost[1]):
                return NextSteps(f"{state} {self._copied}", (outside,))
            repair = f"Put '{lost[1]}' in its place, or correct the path{at}."
        elif _MISSING.search(failure.reason):
            steps = (repair, *self._with_files(), self._again)
            return NextSteps(f"{state} {self._copied}", steps)
        return NextSteps(state, (repair, self._again))

    def _after(self, verdict: Verdict) -> NextSteps:
        if verdict.equal:
            return self._after_same(verdict)
        if not verdict.deterministic:
            change = f"Change {self._original} as the cause says, until two runs of it are equal."
            return NextSteps("Whether the migration is right is not known.", (change, self._again))
        if verdict.cause is not None and verdict.cause.name == "rounding":
            return self._repair(
                f"Train for more steps. If the difference grows, look for its cause in {self._migrated}."
            )
        numbered = ""
        if self.migrated is None:
            numbered = " Lines above are numbered as in the original."
        return self._repair(f"Change {self._migrated} as the cause says.{numbered}")

    def _after_same(self, verdict: Verdict) -> NextSteps:
        printed = [
            found for found in self.left if any(found in line.cause for line in verdict.printed)
        ]
        steps = [*self._unproved(verdict, len(self.left) - len(printed))]
        if self.migrated is None:
            steps.append(self._write)
        elif steps:
            steps.append(f"Use {self._migrated} in place of {self._original}.")
        else:
            use = f"Use {self._migrated} in place of {self._original}. Nothing needs a change."
            return NextSteps("", (use,))
        if printed:
            steps.append(
                "Training is the same, and only what is printed changed. If you need the old number, change the code "
                f"as the cause says ({' and '.join(printed)} of the original). If not, leave it."
            )
        if self.migrated is None:
            return NextSteps(_COPIED, (*steps,))
        return NextSteps("", (*steps,))

    def _unproved(self, verdict: Verdict, findings: int) -> Iterator[str]:
        """What the user must look at first, although both programs train the same; `findings` need it."""
        if any(not line.cause for line in verdict.printed):
            yield "Look at the code that prints what differs without a known cause."
        if clipping.unproved(verdict.original, verdict.migrated):
            files = "in both programs"
            if self.migrated is None:
                files = f"in {self._original}"
            yield (
                f"Test clipping, which this run did not: for a trial, set a lower limit {files}, and run "
                f"`{self._command}`. Then set the limit back."
            )
        if findings:
            what = "the finding that needs you"
            if findings > 1:
                what = f"the {findings} findings that need you"
            check = f"`fsdp-migrate check {self._files_and_form}`"
            yield f"Read {what}: {check}. In this run, training is the same."

    def _repair(self, repair: str) -> NextSteps:
        """The steps around a repair of the migrated program."""
        if self.migrated is not None:
            return NextSteps("", (f"{repair} Leave {self._original} as it is.", self._again))
        files = self._files
        kept = _kept(files)
        if files.is_dir():
            keep = f"cp -r {_quoted(files)} {_quoted(kept)}"
        else:
            keep = f"cp {_quoted(files)} {_quoted(kept)}"
        original = kept
        if files.is_dir() and not self.original.is_dir():
            original = kept / self.original.name
        after = replace(self, original=original, migrated=self.original)
        steps = (
            f"Keep the original: `{keep}`",
            self._write,
            repair,
            f"Compare with what you kept: `{after._command}`",
        )
        return NextSteps(_COPIED, steps)

    @property
    def _command(self) -> str:
        """The command of this run."""
        command = f"fsdp-migrate verify {_quoted(self.original)}"
        if self.migrated is not None:
            command += f" --migrated {_quoted(self.migrated)}"
        elif self.form != DEFAULT_FORM:
            command += f" --form {self.form}"
        if self.entry is not None:
            command += f" --entry {_quoted(self.entry)}"
        return f"{command} {self.options}".rstrip()

    @property
    def _again(self) -> str:
        return f"Verify again: `{self._command}`"

    @property
    def _copied(self) -> str:
        """Which files the program found in its copy."""
        if self.original.is_dir():
            return f"It ran in a temporary copy of {self.original}, without what git ignores there."
        return f"It ran in a temporary copy of {self.original.resolve().parent}, without files from outside of that folder."

    def _outside(self, file: Path) -> str:
        """How to bring along a file that the copy does not have; empty if the user has none, or it is not known how."""
        if not file.exists() or self.migrated is not None:
            return ""
        file = file.resolve()
        root = self.original.resolve()
        if self.original.is_dir():
            if not file.is_relative_to(root):
                return ""
            path = _quoted(file.relative_to(root))
            return f"Link the file, which git ignores: `{self._linked(path)}`"
        if file.is_relative_to(root.parent):
            return ""
        folder = os.path.commonpath([root.parent, file])
        both = Path(os.path.relpath(folder))
        outer = replace(self, original=both, entry=root.relative_to(folder))
        return f"The file is outside of that folder. Verify the folder that has both: `{outer._command}`"

    def _linked(self, path: str) -> str:
        """The command of this run, with one more path to link."""
        command = f"{self._command} ".replace(f" {self.options} ", f" --link {path} {self.options}")
        return command.rstrip()

    def _with_files(self) -> Iterator[str]:
        """How to bring along what is not in the copy."""
        if self.original.is_dir():
            yield f"Or if the file is there and git ignores it: `{self._linked('PATH')}`"
        elif self.migrated is None:
            script = self.original.resolve()
            folder = Path("..")
            if script.is_relative_to(Path.cwd()) and script.parent != Path.cwd():
                folder = Path()
            elif script.parent != Path.cwd():
                folder = self.original.parent / ".."
            outer = replace(self, original=folder, entry=script.relative_to(folder.resolve()))
            yield f"Or if the file is in a folder above: `{outer._command}`"

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


def _kept(path: Path) -> Path:
    """A new name next to a script or a folder: `original_train.py`, `../program.original`."""
    full = path.resolve()
    if path.is_dir():
        name = f"{full.name}.original"
    else:
        name = f"original_{full.name}"
    folder = path.parent
    if path.name in ("", ".."):
        folder = path / ".."
    taken = 1
    kept = folder / name
    while kept.exists():
        taken += 1
        kept = folder / name.replace("original", f"original{taken}")
    return kept


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
