"""One file that declares what programs need: its findings, and its text with torch raised."""

from __future__ import annotations

import ast
import re
from bisect import bisect
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from fsdp_migrate.codemods.context import Silenced, shortened
from fsdp_migrate.codemods.edit.text import spliced
from fsdp_migrate.codemods.requirements import RUNTIME, TORCH
from fsdp_migrate.codemods.rule import Edit, Rule
from fsdp_migrate.findings import Action, Finding, Severity
from fsdp_migrate.report import Change
from fsdp_migrate.requirements import releases
from fsdp_migrate.requirements.decision import built_for_another, decide
from fsdp_migrate.requirements.reading import read
from fsdp_migrate.settings import Options
from fsdp_migrate.source import shown_path

_UNREAD = "This file cannot be read ({reason}). Check whether it asks for torch {torch}, which the migrated code needs."
_ADD = (
    'The migrated code imports `fsdp_migrate.runtime`. Add "fsdp-migrate[runtime]" here (for Python 3.10 or newer), '
    "or copy it into the project with `--vendor DIR`."
)
_PACKAGE = "fsdp-migrate"
_HEADING = re.compile(
    r"^[ \t]*(?:(?:install_requires|dependencies)[ \t]*[=:]|\[[\w.]*dependencies\])", re.MULTILINE
)


class Declaration:
    """One file that declares what programs need.

    Attributes:
        path: the file.
        kind: how it is written: a name of `places.KINDS`.
        said: what it says.
        findings: those of torch's release, once `check` has looked.
        change: the file with the lowest releases of torch raised; None if nothing changes.
    """

    def __init__(self, path: Path, kind: str, data: bytes) -> None:
        self.path = path
        self.kind = kind
        self.data = data
        self.text = data.decode("utf-8", "surrogateescape")
        self.said = read(self.text, kind)
        self.findings: list[Finding] = []
        self.change: Change | None = None
        self._silenced = Silenced(self.text)

    @property
    def is_declared(self) -> bool:
        """Whether the package of the runtime is among what it asks for."""
        return _PACKAGE in [each.name for each in self.said.declared]

    @property
    def asks(self) -> bool:
        """Whether it has a list of what is needed that a person writes."""
        if self.kind == "requirements":
            return bool(self.said.declared) and not self.said.compiled
        return _HEADING.search(self.text) is not None

    @property
    def asks_for_torch(self) -> bool:
        """Whether torch is."""
        return any(each.is_torch for each in self.said.declared)

    def check(self, options: Options, *, may_write: bool) -> None:
        """Fills `findings` and `change`."""
        target = options.target_torch
        if self.said.unread and "torch" in self.text:
            torch = releases.written(target)
            message = _UNREAD.format(reason=self.said.unread, torch=torch)
            self._say(TORCH, (0, 0), self.path.name, message, options)
        edits = []
        for each in self.said.declared:
            decision = None
            if each.is_torch:
                decision = decide(each, self.said, target, may_write=may_write)
            if decision is None:
                continue
            if decision.raised:
                action = Action.REWRITE
            else:
                action = Action.MANUAL
            place = (each.start, each.end)
            message = f"{decision.message}{self._remark(each.end)}"
            is_on = self._say(TORCH, place, each.shown, message, options, action)
            if is_on and decision.raised:
                edits.append(Edit(*place, decision.raised))
        if not self.asks_for_torch:
            for each, decision in built_for_another(self.said, target):
                self._say(TORCH, (each.start, each.end), each.shown, decision.message, options)
        if edits and not options.only_checks:
            after = spliced(self.text, edits).encode("utf-8", "surrogateescape")
            self.change = Change(self.path, self.data, after)

    def _remark(self, end: int) -> str:
        """What is said of a comment behind a requirement that names a release."""
        line = self.text[end:].partition("\n")[0]
        if re.search(r"#.*\d\.\d", line) is None:
            return ""
        return " The comment on this line names a release: check that it is still true."

    def ask_for_runtime(self, options: Options) -> None:
        """Adds the finding that the package of the runtime is missing here."""
        places = [heading.span() for heading in _HEADING.finditer(self.text)]
        places += [(each.start, each.end) for each in self.said.declared if each.is_torch]
        if places:
            place = places[0]
        else:
            place = (0, 0)
        self._say(RUNTIME, place, f"{_PACKAGE}[runtime]", _ADD, options)

    def _say(
        self,
        rule: Rule,
        place: tuple[int, int],
        construct: str,
        message: str,
        options: Options,
        action: Action = Action.MANUAL,
    ) -> bool:
        """Adds a finding, unless its rule is not selected, or silenced on its line; returns whether it did."""
        line, column = self._at(place[0])
        if self._silenced(rule, ast.Pass(lineno=line)) or not options.takes(rule.code):
            return False
        severity = None
        if action is Action.MANUAL:
            severity = rule.severity
        if severity is not None and self.kind == "readme":
            severity = Severity.PRINTS
        finding = Finding(
            path=shown_path(self.path),
            line=line,
            column=column,
            end_line=self._at(place[1])[0],
            end_column=self._at(place[1])[1],
            code=rule.code,
            name=rule.name,
            action=action,
            message=message,
            construct=shortened(construct),
            severity=severity,
        )
        self.findings.append(finding)
        return True

    @cached_property
    def _starts(self) -> list[int]:
        """Where each line starts."""
        return list(accumulate(map(len, self.text.splitlines(keepends=True)), initial=0))

    def _at(self, offset: int) -> tuple[int, int]:
        """The line and the column of a place, both from 1."""
        offset = min(offset, len(self.text))
        line = bisect(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1
