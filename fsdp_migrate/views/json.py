"""The report as JSON, version 1. Keys are never renamed within a version."""

import json

from fsdp_migrate.report import Report
from fsdp_migrate.version import __version__

VERSION = 1


def render_json(report: Report) -> str:
    """The whole report, findings and errors in the order of their places."""
    document = {
        "version": VERSION,
        "tool": f"fsdp-migrate {__version__}",
        "form": report.form,
        "findings": [
            # `safe` is of version 1; nothing unsafe is ever applied.
            finding._asdict() | {"action": finding.action.value, "safe": True}
            for finding in sorted(report.findings)
        ],
        "errors": [problem._asdict() for problem in sorted(report.errors)],
        "passed": [problem._asdict() for problem in sorted(report.passed)],
        "summary": {
            "files": report.files,
            "candidates": report.candidates,
            "findings": len(report.findings),
            **report.count(),
            "baseline": report.known,
            "seconds": round(report.seconds, 3),
        },
    }
    return json.dumps(document, indent=2)
