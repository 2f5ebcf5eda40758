"""The report as JUnit's XML, which most systems for continuous integration read: a suite a file, a failure a finding."""

from collections.abc import Iterator
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

from fsdp_migrate.findings import Finding, Problem
from fsdp_migrate.report import Report
from fsdp_migrate.views.ci import in_repository, level, words
from fsdp_migrate.views.terminal import printable

_NAME = "fsdp-migrate"


def render_junit(report: Report) -> str:
    """A document in which each finding is a test that failed, and each file that could not be read one with an error."""
    findings = sorted(report.findings)
    errors = sorted(report.errors)
    tests = len(findings) + len(errors)
    suites = [*_suites(findings), *_errors(errors)]
    if not tests:
        # A document without a test is taken for a run that did not happen.
        tests = 1
        suites = [_suite(_NAME, [f'<testcase name="{_NAME}" classname="{_NAME}"/>'])]
    counts = f'tests="{tests}" failures="{len(findings)}" errors="{len(errors)}"'
    head = '<?xml version="1.0" encoding="UTF-8"?>'
    return "\n".join([head, f'<testsuites name="{_NAME}" {counts}>', *suites, "</testsuites>"])


def _suites(findings: list[Finding]) -> Iterator[str]:
    for path, found in groupby(findings, lambda finding: finding.path):
        name = in_repository(path)
        cases = [_failure(finding, name) for finding in found]
        yield _suite(name, cases, failures=len(cases))


def _errors(errors: list[Problem]) -> Iterator[str]:
    for problem in errors:
        name = in_repository(problem.path)
        place = f'name="error" classname={_quoted(name)} file={_quoted(name)} line="{max(problem.line, 1)}"'
        message = f"<error message={_quoted(problem.message)}/>"
        yield _suite(name, [f"<testcase {place}>{message}</testcase>"], errors=1)


def _suite(name: str, cases: list[str], failures: int = 0, errors: int = 0) -> str:
    counts = f'tests="{len(cases)}" failures="{failures}" errors="{errors}"'
    lines = [f"  <testsuite name={_quoted(name)} {counts}>", *[f"    {case}" for case in cases]]
    return "\n".join([*lines, "  </testsuite>"])


def _failure(finding: Finding, name: str) -> str:
    place = f'file={_quoted(name)} line="{finding.line}"'
    text = f"{name}:{finding.line}:{finding.column} {finding.code} {words(finding)}"
    message = f'<failure type="{level(finding)}" message={_quoted(words(finding))}>{escape(printable(text))}</failure>'
    named = _quoted(f"{finding.code} {finding.name}: line {finding.line}, column {finding.column}")
    return f"<testcase name={named} classname={_quoted(name)} {place}>{message}</testcase>"


def _quoted(text: str) -> str:
    return quoteattr(printable(text))
