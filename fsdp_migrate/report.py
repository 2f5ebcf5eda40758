"""The result of one run: findings, errors and changed files. Views print or apply it."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fsdp_migrate.findings import Action, Finding, Problem
from fsdp_migrate.settings import DEFAULT_FORM


@dataclass(frozen=True)
class Change:
    """One file before and after, as bytes: encoding, line endings and byte-order mark are part of a file.

    Attributes:
        origins: for each line of a program afterwards, the number of the line that it was, or that it was written for.
    """

    path: Path
    before: bytes
    after: bytes
    origins: tuple[int, ...] = ()

    @property
    def is_new(self) -> bool:
        """Whether the file is not there yet."""
        return not self.before and not self.path.exists()


@dataclass
class Report:
    """What one run found and would change.

    Attributes:
        errors: files that were left out, and why.
        passed: files that were passed over, and folders without any, and why, which is no error.
        candidates: how many files mention FSDP, or take a norm over ranks, at all.
        on_bridge: whether no file uses torch's FSDP1, and the form torch rewrites nothing that is on the runtime.
        vendored: the folders with a copy of the runtime that the files import.
        wrote: whether the changes are in the files.
        marked: how many findings have a comment in the changes, because a later run could not make them again.
        known: how many findings the baseline left out.
        form: what the programs become, as `--form` says.
        target: the oldest release of torch that they run on then, as in (2, 8).
        programs: the files that use torch's FSDP1.
        imports_runtime: whether one of them imports the runtime, from the package that is installed, when it is migrated.
    """

    findings: list[Finding] = field(default_factory=list)
    errors: list[Problem] = field(default_factory=list)
    passed: list[Problem] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    files: int = 0
    candidates: int = 0
    on_bridge: bool = False
    vendored: list[Path] = field(default_factory=list)
    wrote: bool = False
    marked: int = 0
    known: int = 0
    form: str = DEFAULT_FORM
    target: tuple[int, ...] = (2, 8)
    programs: list[Path] = field(default_factory=list)
    imports_runtime: bool = False
    seconds: float = 0.0

    @property
    def is_done(self) -> bool:
        """Whether the migration is done: all files were read, none uses torch's FSDP1, and nothing is left to the user."""
        by_hand = Action.MANUAL in [finding.action for finding in self.findings]
        return not (self.errors or by_hand) and (self.on_bridge or not self.findings)

    @property
    def rewritten(self) -> list[Change]:
        """The changes of the program itself, without copies of the runtime, by path."""
        changes = [change for change in self.changes if change.path.parent not in self.vendored]
        return sorted(changes, key=lambda change: change.path)

    @property
    def manual(self) -> list[Finding]:
        """The findings that a rewrite leaves to the reader."""
        return [finding for finding in self.findings if finding.action is Action.MANUAL]

    def count(self) -> dict[str, int]:
        """The number of findings by action, every action named."""
        counts = Counter([finding.action for finding in self.findings])
        return {action.value: counts[action] for action in Action}
