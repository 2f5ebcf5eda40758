"""The requirements of the programs of a run: what they ask for is added to its report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fsdp_migrate.discover import Discovered
from fsdp_migrate.report import Report
from fsdp_migrate.requirements.file import Declaration
from fsdp_migrate.requirements.places import declaring
from fsdp_migrate.settings import Options

# A file that is installed from, before one that is only read by people or builds a machine.
_FIRST = ("toml", "cfg", "python", "requirements", "conda")


def add_requirements(report: Report, found: Discovered, options: Options) -> None:
    """Adds the findings and changes of the files that declare what the programs of a report need."""
    given = [os.path.abspath(path) for path in found.given]
    declarations = []
    for file, kind in declaring(
        map(os.path.abspath, report.programs), given, found.excluded
    ).items():
        try:
            declaration = Declaration(Path(file), kind, Path(file).read_bytes())
        except OSError:  # it went away, or is not for us
            continue
        declaration.check(options, may_write=_is_given(file, given))
        declarations.append(declaration)
    if report.imports_runtime and not any(each.is_declared for each in declarations):
        home = _home(declarations)
        if home is not None:
            home.ask_for_runtime(options)
    for each in declarations:
        report.findings += each.findings
        if each.change:
            report.changes += [each.change]
    report.findings.sort()


def _is_given(file: str, given: Sequence[str]) -> bool:
    """Whether a file is one of the paths of the run, or below one."""
    return any(file == path or file.startswith(os.path.join(path, "")) for path in given)


def _home(declarations: Sequence[Declaration]) -> Declaration | None:
    """The file that a dependency is added to: the nearest to the root, of those that ask for torch if any do."""
    possible = [each for each in declarations if each.kind in _FIRST and each.asks]
    asking = [each for each in possible if each.asks_for_torch]
    return min(asking or possible, key=_rank, default=None)


def _rank(declaration: Declaration) -> tuple[int, int, str]:
    depth = len(declaration.path.parts)
    return depth, _FIRST.index(declaration.kind), str(declaration.path)
