"""The findings that stand on a line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fsdp_migrate.findings import Action
from fsdp_migrate.verify.where.lines import Line


def with_rules(lines: list[Line], root: Path, form: str) -> list[Line]:
    """The lines with the codes of the findings on them, in the original program below `root`."""
    if not lines:
        return []
    from fsdp_migrate.discover import discover
    from fsdp_migrate.engine import analyse
    from fsdp_migrate.settings import Options

    report = analyse(discover([root]), Options(form=form))
    codes: dict[tuple[str, int], dict[str, None]] = {}
    manual: dict[tuple[str, int], str] = {}
    for finding in (*report.manual, *report.findings):
        path = Path(finding.path).resolve()
        if path.is_relative_to(root):
            place = str(path.relative_to(root)), finding.line
            codes.setdefault(place, {})[finding.code] = None
            if finding.action is Action.MANUAL:
                manual.setdefault(place, finding.message)
    found = []
    for line in lines:
        place = line.file, line.line
        rules = tuple(codes.get(place, {}))
        message = manual.get(place, "")
        found.append(replace(line, rules=rules, needs_user=place in manual, message=message))
    return found
