"""The report for a person: a line for each finding, and one that sums up."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from fsdp_migrate.findings import Action, Finding, Problem
from fsdp_migrate.report import Report
from fsdp_migrate.source import shown_path
from fsdp_migrate.views.terminal import Stream, paint, printable

_COLOURS = {Action.REWRITE: "green", Action.RUNTIME: "yellow", Action.MANUAL: "red"}


def render_findings(findings: Iterable[Finding], stream: Stream = "stdout") -> list[str]:
    """`path:line:column CODE construct: message`, a blank line between files."""
    lines: list[str] = []
    for _, group in groupby(sorted(findings), key=lambda finding: finding.path):
        if lines:
            lines.append("")
        lines.extend(_finding_line(finding, stream) for finding in group)
    return lines


def render_changes(report: Report) -> list[str]:
    """A line for each file that was rewritten, and how much of it."""
    counts = Counter(f.path for f in report.findings if f.action is not Action.MANUAL)
    names = sorted(shown_path(change.path) for change in report.changes)
    return [f"rewrote {printable(name)} ({_number(counts[name], 'construct')})" for name in names]


def render_problems(problems: Iterable[Problem], stream: Stream = "stderr") -> list[str]:
    """`error: path:line: message`."""
    word = paint("error:", stream, fg="red", bold=True)
    return [
        f"{word} {_place(problem)}: {printable(problem.message)}" for problem in sorted(problems)
    ]


def summary(report: Report) -> str:
    """What was found and what is done with it, in one sentence."""
    if not report.findings:
        return f"No FSDP1 of torch in {_number(report.files, 'file')}."
    counts = report.count()
    files = len({finding.path for finding in report.findings})
    found = f"Found {_number(len(report.findings), 'construct')} in {_number(files, 'file')}"
    rewritten, runtime, manual = (counts[action] for action in ("rewrite", "runtime", "manual"))
    return f"{found}: {rewritten} made plain, {runtime} served by the runtime, {manual} by hand."


def next_step(report: Report, paths: Sequence[str], *, wrote: bool) -> str:
    """What to do now, in one line; empty where nothing is left to do."""
    manual = remaining(report.findings)
    if wrote and report.changes:
        first = f"look at the {_number(len(manual), 'finding')} by hand, then " if manual else ""
        return f"Next: {first}`fsdp-migrate verify ORIGINAL --migrated SCRIPT` compares what both train."
    if not wrote and len(report.findings) > len(manual):
        own = shlex.join(map(printable, paths))
        return f"Next: `fsdp-migrate verify SCRIPT` tries it on a copy, `fsdp-migrate {own}` writes it."
    if manual:
        return f"Next: `fsdp-migrate explain {manual[0].code}` says what to do."
    return ""


def remaining(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that a rewrite leaves to the reader."""
    return [finding for finding in findings if finding.action is Action.MANUAL]


def _finding_line(finding: Finding, stream: Stream) -> str:
    place = f"{printable(finding.path)}:{finding.line}:{finding.column}"
    code = paint(finding.code, stream, fg=_COLOURS[finding.action], bold=True)
    mark = ""
    if finding.action is Action.MANUAL:
        mark = " [by hand]"
    elif finding.action is Action.RUNTIME:
        mark = " [runtime]"
    construct = printable(finding.construct)
    return f"{paint(place, stream, bold=True)} {code} `{construct}`: {finding.message}{mark}"


def _place(problem: Problem) -> str:
    name = printable(problem.path)
    return f"{name}:{problem.line}" if problem.line else name


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
