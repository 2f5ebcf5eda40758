"""The findings that stand on a line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

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
    for finding in report.findings:
        path = Path(finding.path).resolve()
        if path.is_relative_to(root):
            name = str(path.relative_to(root))
            codes.setdefault((name, finding.line), {})[finding.code] = None
    return [replace(line, rules=(*codes.get((line.file, line.line), {}),)) for line in lines]
