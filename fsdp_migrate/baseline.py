"""A baseline: the FSDP1 findings that a repository already has, so that `check` reports only new ones.

A finding is known by its file, rule and construct, not by its line. The file is JSON, version 1.
"""

import json
import os
from collections import Counter
from pathlib import Path, PurePath

from fsdp_migrate.exit_codes import Unusable
from fsdp_migrate.findings import Finding
from fsdp_migrate.report import Report

VERSION = 1
Known = Counter[tuple[str, str]]  # by path, and by code and construct


def write_baseline(file: Path, report: Report) -> None:
    """Makes the findings of a report the baseline."""
    found: dict[str, dict[str, int]] = {}
    counts = Counter([_key(finding, file.parent) for finding in report.findings])
    for (path, what), count in sorted(counts.items()):
        found.setdefault(path, {})[what] = count
    text = json.dumps({"version": VERSION, "findings": found}, indent=1, ensure_ascii=False)
    try:
        file.write_text(text + "\n", "utf-8", "surrogateescape")
    except OSError as error:
        raise Unusable(f"{file}: cannot be written: {error.strerror}") from None


def pass_known(file: Path, report: Report) -> None:
    """Takes what is in the baseline out of a report, and counts it."""
    known = _read(file)
    new = []
    for finding in sorted(report.findings):
        key = _key(finding, file.parent)
        if known[key] > 0:
            known[key] -= 1
        else:
            new.append(finding)
    report.known = len(report.findings) - len(new)
    report.findings = new


def _read(file: Path) -> Known:
    try:
        document = json.loads(file.read_text("utf-8", "surrogateescape"))
        version = document["version"]
        found = document["findings"].items()
        known = Counter({(path, what): int(n) for path, each in found for what, n in each.items()})
    except OSError as error:
        raise Unusable(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unusable(f"{file}: is no baseline of fsdp-migrate: {error}") from None
    if version != VERSION:
        raise Unusable(f"{file}: is of version {version}, not {VERSION}")
    return known


def _key(finding: Finding, folder: Path) -> tuple[str, str]:
    path = PurePath(os.path.relpath(finding.path, folder)).as_posix()
    return path, f"{finding.code} {finding.construct}"
