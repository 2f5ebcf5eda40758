"""The report for continuous integration: SARIF 2.1.0, and GitHub's annotations.

Paths are relative to the root of the repository, whatever folder the command runs in.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from fsdp_migrate import git
from fsdp_migrate.codemods.registry import rule_for
from fsdp_migrate.findings import Action, Finding, Problem
from fsdp_migrate.report import Report
from fsdp_migrate.version import __version__
from fsdp_migrate.views.terminal import printable

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_GITHUB = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_OF_PROPERTY = {**_GITHUB, ":": "%3A", ",": "%2C"}


def render_sarif(report: Report) -> str:
    """SARIF 2.1.0 with an object for each rule that found something; by hand is an error, the rest a warning."""
    findings = sorted(report.findings)
    codes = sorted({f.code for f in report.findings})
    rules = [_rule(code) for code in codes]
    driver = {"name": "fsdp-migrate", "version": __version__, "rules": rules}
    notes = [_notification(problem) for problem in sorted(report.errors)]
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {"executionSuccessful": not report.errors, "toolExecutionNotifications": notes}
        ],
        "results": [
            {
                "ruleId": finding.code,
                "ruleIndex": codes.index(finding.code),
                "level": level(finding),
                "message": {"text": words(finding)},
                "locations": [_location(finding.path, _region(finding))],
            }
            for finding in findings
        ],
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2)


def render_github(report: Report) -> str:
    """A workflow command for each finding, which GitHub shows beside the line."""
    lines = []
    for finding in sorted(report.findings):
        place: dict[str, Any] = {"file": in_repository(finding.path), "line": finding.line}
        place |= {"endLine": finding.end_line, "title": f"{finding.code} {finding.name}"}
        if finding.line == finding.end_line:
            place |= {"col": finding.column, "endColumn": finding.end_column}
        lines.append(_command(level(finding), place, words(finding)))
    for problem in sorted(report.errors):
        place = {"file": in_repository(problem.path), "line": max(problem.line, 1)}
        lines.append(_command("error", place, problem.message))
    return "\n".join(lines)


def in_repository(path: str) -> str:
    """A path of a finding relative to the root of the repository; as it is where there is none."""
    full = os.path.realpath(path)
    root = git.toplevel(os.getcwd())
    if root is None or not full.startswith(os.path.join(os.path.realpath(root), "")):
        return path
    return PurePath(os.path.relpath(full, os.path.realpath(root))).as_posix()


def _rule(code: str) -> dict[str, Any]:
    rule = rule_for(code)
    if rule is None:  # found by another part of the tool than the rules
        return {"id": code}
    return {
        "id": code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.summary},
        "help": {"text": rule.page, "markdown": rule.page},
    }


def _notification(problem: Problem) -> dict[str, Any]:
    region = None
    if problem.line:
        region = {"startLine": problem.line}
    where = [_location(problem.path, region)]
    return {"level": "error", "message": {"text": problem.message}, "locations": where}


def _location(path: str, region: dict[str, int] | None) -> dict[str, Any]:
    name = in_repository(path)
    if os.path.isabs(name):
        artifact = {"uri": Path(name).as_uri()}
    else:
        artifact = {"uri": quote(os.fsencode(name)), "uriBaseId": "%SRCROOT%"}
    location: dict[str, Any] = {"artifactLocation": artifact}
    if region:
        location["region"] = region
    return {"physicalLocation": location}


def _region(finding: Finding) -> dict[str, int]:
    return {
        "startLine": finding.line,
        "startColumn": finding.column,
        "endLine": finding.end_line,
        "endColumn": finding.end_column,
    }


def words(finding: Finding) -> str:
    """A finding without its place."""
    return f"{finding.construct}: {finding.message}"


def level(finding: Finding) -> str:
    """How serious a finding is, where there are errors and warnings."""
    if finding.action is Action.MANUAL:
        return "error"
    return "warning"


def _command(level: str, place: dict[str, Any], message: str) -> str:
    properties = ",".join(f"{k}={_escaped(str(v), _OF_PROPERTY)}" for k, v in place.items())
    return f"::{level} {properties}::{_escaped(message, _GITHUB)}"


def _escaped(text: str, signs: Mapping[str, str]) -> str:
    return printable(text.translate({ord(sign): code for sign, code in signs.items()}))
