"""fsdp-migrate: rewrites PyTorch FSDP1 programs for FSDP2 and proves that they still train the same.

`migrate_source` and `check` are the interface for other programs. Their results, `fsdp_migrate.findings.Finding` and
`fsdp_migrate.report.Report`, keep their attributes within a major version.
"""

from __future__ import annotations

from fsdp_migrate.version import __version__

TYPE_CHECKING = False  # as type checkers know it, without the import of `typing`
if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from fsdp_migrate.findings import Finding
    from fsdp_migrate.report import Report

__all__ = ["__version__", "check", "migrate_source"]

# Nothing is imported before it is used: the runtime lies in this package, and a training imports it.


def migrate_source(text: str, *, form: str = "auto") -> tuple[str, list[Finding]]:
    """Migrates one Python program; returns its code and the findings.

    Of what it imports nothing is known. `form` is as for `--form`: auto, bridge or torch. Raises
    ValueError where the text is no Python, or cannot be migrated.
    """
    from pathlib import Path

    from fsdp_migrate.engine import analyse_source
    from fsdp_migrate.settings import FORMS, Options
    from fsdp_migrate.source import Source

    if form not in FORMS:
        raise ValueError(f"{form!r} is no form: {', '.join(FORMS)}")
    path = Path("program.py")
    shown = "program.py"
    try:
        encoding = Source(path, shown, text.encode()).encoding  # what the text itself declares
        source = Source(path, shown, text.encode(encoding))
    except SyntaxError as error:
        raise ValueError(f"line 1: {error}") from None
    report = analyse_source(source, Options(form=form))
    if report.errors:
        raise ValueError(f"line {report.errors[0].line}: {report.errors[0].message}")
    if report.changes:
        after = report.changes[0].after.decode(encoding)
    else:
        after = text
    return after, report.findings


def check(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Report:
    """What `fsdp-migrate check` finds in a file or a folder, or in several, with their project's settings.

    Files that cannot be read are `errors` of the report; `is_done` tells whether the migration is. Raises ValueError
    where the settings cannot be used.
    """
    from os import PathLike
    from pathlib import Path

    from fsdp_migrate.discover import discover
    from fsdp_migrate.engine import analyse
    from fsdp_migrate.settings import Options, load_settings

    if isinstance(paths, str | PathLike):
        paths = [paths]
    places = [Path(each) for each in paths]
    settings = load_settings(places)
    options = Options(only_checks=True, select=settings.select, ignore=settings.ignore)
    found = discover(places, settings.exclude, settings.root)
    report = analyse(found, options)
    if report.programs:
        from fsdp_migrate.requirements.check import add_requirements

        add_requirements(report, found, options)
    return report
