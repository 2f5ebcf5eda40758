"""The migrated program, where the user names none: the tool migrates a copy."""

from __future__ import annotations

from pathlib import Path

from fsdp_migrate.verify.errors import Unverifiable


def migrate(root: Path, form: str = "auto") -> list[str]:
    """Migrate the Python files below `root`, a copy, in place, by the project's settings; returns warnings.

    Raises Unverifiable where nothing changes, so that there is nothing to compare.
    """
    from fsdp_migrate.discover import discover
    from fsdp_migrate.engine import analyse
    from fsdp_migrate.settings import Options, load_settings

    settings = load_settings([root])
    options = Options(form=form, select=settings.select, ignore=settings.ignore)
    report = analyse(discover([root], settings.exclude, settings.root), options)
    for change in report.changes:
        change.path.write_bytes(change.after)
    warnings = [f"{problem.path}: {problem.message}" for problem in report.errors]
    if manual := report.manual:
        first = f"{manual[0].code} at {Path(manual[0].path).name}:{manual[0].line}"
        warnings.append(f"{len(manual)} left to do by hand, the first is {first}")
    if not report.changes:
        nothing = "the migration changes nothing: give a migrated program with --migrated, and its original as SCRIPT"
        raise Unverifiable("; ".join([nothing, *warnings]))
    return warnings
