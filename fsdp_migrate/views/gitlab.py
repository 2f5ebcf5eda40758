"""The report for GitLab: a Code Quality report, which a merge request shows beside its lines."""

import hashlib
import json
from collections import Counter

from fsdp_migrate.findings import Severity
from fsdp_migrate.report import Report
from fsdp_migrate.views.ci import in_repository, words
from fsdp_migrate.views.terminal import printable

_SEVERITIES = {Severity.SILENT: "critical", Severity.RAISES: "major", Severity.PRINTS: "minor"}
_ERROR = "blocker"


def render_gitlab(report: Report) -> str:
    """A list with an object for each finding and each file that could not be read.

    A fingerprint says whether a finding is that of the run before: it does not depend on the line.
    """
    seen: Counter[str] = Counter()
    entries = []
    for finding in sorted(report.findings):
        severity = "info"
        if finding.severity is not None:
            severity = _SEVERITIES[finding.severity]
        path = in_repository(finding.path)
        key = f"{path}\n{finding.code} {finding.construct}"
        seen[key] += 1
        entry = _entry(finding.code, words(finding), severity, f"{key}\n{seen[key]}")
        lines = {"begin": finding.line, "end": finding.end_line}
        entries.append({**entry, "location": {"path": printable(path), "lines": lines}})
    for problem in sorted(report.errors):
        path = in_repository(problem.path)
        entry = _entry("error", problem.message, _ERROR, f"{path}\n{problem.message}")
        place = {"path": printable(path), "lines": {"begin": max(problem.line, 1)}}
        entries.append({**entry, "location": place})
    return json.dumps(entries, indent=2)


def _entry(name: str, text: str, severity: str, key: str) -> dict[str, object]:
    fingerprint = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    return {
        "description": printable(text),
        "check_name": name,
        "fingerprint": fingerprint,
        "severity": severity,
    }
