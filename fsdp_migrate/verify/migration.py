"""The migrated program, where the user names none: the tool migrates a copy."""

from __future__ import annotations

from pathlib import Path

from fsdp_migrate.values import Values
from fsdp_migrate.verify.errors import Unverifiable


def migrate(root: Path, form: str = "auto", values: Values | None = None) -> list[str]:
    """Migrate the Python files below `root`, a copy, in place, by the project's settings; returns warnings.

    Raises Unverifiable where nothing changes, so that there is nothing to compare.
    """
    from fsdp_migrate.discover import discover
    from fsdp_migrate.engine import analyse
    from fsdp_migrate.findings import Action
    from fsdp_migrate.settings import Options, load_settings

    settings = load_settings([root])
    options = Options(form=form, select=settings.select, ignore=settings.ignore, values=values)
    report = analyse(discover([root], settings.exclude, settings.root), options)
    for change in report.changes:
        change.path.write_bytes(change.after)
    warnings = [f"{problem.path}: {problem.message}" for problem in report.errors]
    manual = [finding for finding in report.findings if finding.action is Action.MANUAL]
    if manual:
        first = manual[0]
        where = f"{Path(first.path).name}:{first.line}"
        few = "1 finding is" if len(manual) == 1 else f"{len(manual)} findings are"
        also = "" if len(manual) == 1 else "the first is "
        warnings.append(f"{few} left to do by hand: {also}{first.code} at {where}")
    if not report.changes:
        raise Unverifiable("; ".join(["the migration changes nothing", *warnings]))
    return warnings
