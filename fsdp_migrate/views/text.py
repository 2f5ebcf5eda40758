"""The report as text: a line for each finding, and a summary."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

import click

from fsdp_migrate.findings import Action, Finding, Problem
from fsdp_migrate.report import Report
from fsdp_migrate.settings import DEFAULT_FORM
from fsdp_migrate.source import shown_path
from fsdp_migrate.views.terminal import printable

WORDS = {Action.REWRITE: "plain", Action.RUNTIME: "runtime", Action.MANUAL: "by hand"}
_COLOURS = {Action.REWRITE: "green", Action.RUNTIME: "yellow", Action.MANUAL: "red"}


def render_findings(findings: Iterable[Finding]) -> list[str]:
    """`path:line:column CODE construct: message`, a blank line between files."""
    lines: list[str] = []
    for _, group in groupby(sorted(findings), key=lambda finding: finding.path):
        if lines:
            lines.append("")
        lines.extend(map(_finding_line, group))
    return lines


def render_statistics(report: Report) -> list[str]:
    """`12  FSDP002  fsdp1-constructor  10 plain, 2 runtime`: a line for each rule, the most frequent first."""
    rules: dict[tuple[str, str], Counter[Action]] = {}
    for finding in report.findings:
        rules.setdefault((finding.code, finding.name), Counter())[finding.action] += 1
    if not rules:
        return []
    most = max(counts.total() for counts in rules.values())
    width = max(len(name) for _, name in rules)
    return [
        f"{counts.total():{len(str(most))}}  {click.style(code, bold=True)}  {name:{width}}  {_counts(counts)}"
        for (code, name), counts in sorted(
            rules.items(), key=lambda each: (-each[1].total(), each[0])
        )
    ]


def render_run(report: Report, settings: Path | None) -> list[str]:
    """What a run has read: the settings, how many files, and in which time."""
    read = f"read {counted(report.files, 'file')} in {report.seconds:.2f} s"
    return [
        f"settings: {printable(str(settings)) if settings else 'none'}",
        f"{read}: {report.candidates:,} of them may use FSDP1",
    ]


def render_changes(report: Report) -> list[str]:
    """A line for each file that was rewritten, with what was done in it, and for each copy of the runtime."""
    lines = []
    for change in report.rewritten:
        name = shown_path(change.path)
        counts = Counter(f.action for f in report.findings if f.path == name)
        lines.append(f"rewrote {printable(name)}: {_counts(counts)}")
    for folder in report.vendored:
        if copied := sum(change.path.parent == folder for change in report.changes):
            name = printable(shown_path(folder))
            lines.append(f"copied the runtime to {name} ({counted(copied, 'file')})")
    return lines


def render_problems(problems: Iterable[Problem]) -> list[str]:
    """`error: path:line: message`."""
    word = click.style("error:", fg="red", bold=True)
    return [
        f"{word} {_place(problem)}: {printable(problem.message)}" for problem in sorted(problems)
    ]


def render_passed(problems: Iterable[Problem]) -> list[str]:
    """`note: path:line: message`."""
    word = click.style("note:", bold=True)
    return [f"{word} {_place(each)}: {printable(each.message)}" for each in sorted(problems)]


ASSUMPTION = "FSDP003"  # in torch's form, what is taken for granted


def summary(report: Report) -> str:
    """How many constructs were found and how they are handled, in one sentence."""
    known = f" {counted(report.known, 'finding')} more in the baseline." if report.known else ""
    if report.marked:
        known += f" {counted(report.marked, 'finding')} marked by a comment to remove."
    if not report.findings:
        read = "what could be read" if report.errors else counted(report.files, "file")
        return f"No {'new ' if known else ''}FSDP1 of torch in {read}.{known}"
    files = len({finding.path for finding in report.findings})
    assumed = sum((f.code, f.action) == (ASSUMPTION, Action.REWRITE) for f in report.findings)
    found = (
        f"Found {counted(len(report.findings) - assumed, 'construct')} in {counted(files, 'file')}"
    )
    rewritten, runtime, manual = report.count().values()
    plain = f"{rewritten - assumed} made plain"
    if assumed:
        plain += f" under {counted(assumed, 'assumption')} (--check lists them)"
    return f"{found}: {plain}, {runtime} served by the runtime, {manual} by hand.{known}"


def next_steps(
    report: Report, paths: Sequence[str], form: str = DEFAULT_FORM
) -> list[tuple[str, str]]:
    """What to do now and the command for it; nothing where nothing is left to do."""
    manual = report.manual
    # pre-commit names every file
    own = shlex.join(map(printable, paths)) if len(paths) <= 5 else "PATH..."
    chosen = "" if form == DEFAULT_FORM else f" --form {form}"
    steps = []
    if manual:
        most = Counter(finding.code for finding in manual).most_common(1)[0][0]
        steps.append(
            (f"what to do about {counted(len(manual), 'finding')} by hand", f"explain {most}")
        )
    if report.wrote:
        steps.append(("compare what both train", "verify ORIGINAL --migrated SCRIPT"))
        if report.count()["runtime"] and not report.vendored:
            without = "copy the runtime, to run where fsdp-migrate is not installed"
            steps.append((without, f"{own}{chosen} --vendor DIR"))
    elif len(report.findings) > len(manual):
        steps.append(("try it on a copy", f"verify SCRIPT{chosen}"))
        steps.append(("write it", f"{own}{chosen}"))
        if manual:
            comments = "write it, with a comment where a later check could not find a finding again"
            steps.append((comments, f"{own}{chosen} --mark"))
    return [(what, f"fsdp-migrate {command}") for what, command in steps]


def _finding_line(finding: Finding) -> str:
    place = click.style(f"{_name(finding.path)}:{finding.line}:{finding.column}", bold=True)
    code = click.style(finding.code, fg=_COLOURS[finding.action], bold=True)
    mark = "" if finding.action is Action.REWRITE else f" [{WORDS[finding.action]}]"
    construct = printable(finding.construct)
    return f"{place} {code} `{construct}`: {printable(finding.message)}{mark}"


def _name(path: str) -> str:
    """A path at the start of a line: CI systems take `::error ...` and `##...` there for commands."""
    name = printable(path)
    return f"./{name}" if name.lstrip().startswith(("::", "##")) else name


def _place(problem: Problem) -> str:
    name = _name(problem.path)
    return f"{name}:{problem.line}" if problem.line else name


def _counts(counts: Counter[Action]) -> str:
    """`2 plain, 1 runtime`, without what is none."""
    return ", ".join(f"{counts[action]} {word}" for action, word in WORDS.items() if counts[action])


def counted(number: int, noun: str) -> str:
    """`1 loss`, `2,000 losses`."""
    plural = "es" if noun.endswith(("s", "ch")) else "s"
    return f"{number:,} {noun}" + (plural if number != 1 else "")
