"""The migration of a copy, and what it leaves to the user."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.findings import Finding
from fsdp_migrate.report import Report
from fsdp_migrate.verify import causes
from fsdp_migrate.verify.errors import Unverifiable


@dataclass(frozen=True)
class Migrated:
    """What became of a copy.

    Attributes:
        warnings: what a reader of the result should know.
        findings: what needs the user, with paths relative to the copy.
        origins: for the lines of each file that changed, the lines that they come from.
    """

    warnings: list[str]
    findings: list[Finding]
    origins: dict[str, tuple[int, ...]]


def migrate(root: Path, form: str) -> Migrated:
    """Migrate the Python files below `root`, a copy, in place, by the project's settings.

    Raises Unverifiable where nothing changes, so that there is nothing to compare.
    """
    report = _analysed(root, form)
    for change in report.changes:
        change.path.write_bytes(change.after)
    warnings = [f"{problem.path}: {problem.message}" for problem in report.errors]
    findings = _of_people(root, report)
    if findings:
        warnings.append(causes.note_of(findings))
    if not report.changes:
        nothing = "the migration changes nothing: pass the migrated program with --migrated, and the original as SCRIPT"
        raise Unverifiable("; ".join([nothing, *warnings]))
    origins = {_below(root, str(change.path)): change.origins for change in report.changes}
    return Migrated(warnings, findings, origins)


def _analysed(root: Path, form: str) -> Report:
    from fsdp_migrate.discover import discover
    from fsdp_migrate.engine import analyse
    from fsdp_migrate.settings import Options, load_settings

    settings = load_settings([root])
    options = Options(form=form, select=settings.select, ignore=settings.ignore)
    return analyse(discover([root], settings.exclude, settings.root), options)


def left_to_user(root: Path, form: str) -> list[Finding]:
    """What the tool leaves to people in a program that was migrated otherwise."""
    return _of_people(root, _analysed(root, form))


def left_in_torch(root: Path, names: Sequence[str]) -> tuple[str, ...]:
    """What needs the user in some files of a program below `root`, migrated in the form torch: `FSDP529 at train.py:21`."""
    report = _analysed(root, "torch")
    found = [(each.code, _below(root, each.path), each.line) for each in _of_people(root, report)]
    found += [("an error", _below(root, each.path), each.line) for each in report.errors]
    return tuple(f"{what} at {path}:{line}" for what, path, line in found if path in names)


def _of_people(root: Path, report: Report) -> list[Finding]:
    return [finding._replace(path=_below(root, finding.path)) for finding in report.manual]


def _below(root: Path, path: str) -> str:
    """A path relative to a folder that it is in."""
    full = Path(path).resolve()
    if full.is_relative_to(root):
        return full.relative_to(root).as_posix()
    return path
