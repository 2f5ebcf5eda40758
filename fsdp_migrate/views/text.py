"""The report as text: a line for each finding, and a summary."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

import click

from fsdp_migrate.findings import ASSUMPTION, HAPPENS, IN_AUTO, Action, Finding, Problem
from fsdp_migrate.report import Report
from fsdp_migrate.settings import DEFAULT_FORM
from fsdp_migrate.source import shown_path
from fsdp_migrate.views.terminal import printable, wrapped

WORDS = {Action.REWRITE: "rewritten", Action.RUNTIME: "runs as before", Action.MANUAL: "needs you"}
_COLOURS = {Action.REWRITE: "green", Action.RUNTIME: "yellow", Action.MANUAL: "red"}
# Rules about imports and names: what they find follows from what other rules find, unless it needs the user.
_REFERENCES = ("FSDP001", "FSDP017")
_MOST_PLACES = 5
_MOST_RULES = 3  # that are named to be read about
_STILL_FSDP1 = "still FSDP1"
_ASSUMED = "assumed"
_MEANINGS = {
    WORDS[Action.REWRITE]: "fsdp-migrate replaces it by code for FSDP2",
    _ASSUMED: "training is the same if these hold; if one does not, use `--form auto`, which keeps FSDP1's behaviour",
    WORDS[Action.RUNTIME]: "works under FSDP2 as it is, or with fsdp_migrate.runtime",
    **{severity.value: meaning for severity, meaning in HAPPENS.items()},
    _STILL_FSDP1: "a setting that selects FSDP1 in another library, or has no use with FSDP2",
}


def render_findings(findings: Iterable[Finding], width: int = 0) -> list[str]:
    """`path:line:column CODE construct: message`, a blank line between files; with a width, messages are wrapped below."""
    lines: list[str] = []
    for _, group in groupby(sorted(findings), key=lambda finding: finding.path):
        if lines:
            lines.append("")
        lines.extend([_finding_line(finding, width) for finding in group])
    return lines


def render_grouped(findings: Iterable[Finding], width: int = 0) -> list[str]:
    """Each message once, with its other places below it; last, by severity, what needs the user."""
    groups: dict[str, list[Finding]] = {kind: [] for kind in _MEANINGS}
    for finding in findings:
        groups[heading_of(finding)].append(finding)
    lines: list[str] = []
    groups[_ASSUMED] = [_without_what_its_heading_says(each) for each in groups[_ASSUMED]]
    for heading, found in groups.items():
        if found:
            if lines:
                lines.append("")
            colour = _COLOURS[found[0].action]
            title = click.style(f"{heading} ({len(found)})", fg=colour, bold=True)
            lines.append(wrapped(f"{title}: {_MEANINGS[heading]}", width))
            lines += _messages(found, width)
    return lines


def _without_what_its_heading_says(assumption: Finding) -> Finding:
    return assumption._replace(message=assumption.message.removesuffix(f" {IN_AUTO}"))


def heading_of(finding: Finding) -> str:
    """The heading that a finding belongs under: what is done, or what happens if nobody acts on it."""
    if finding.assumption:
        return _ASSUMED
    if finding.severity is None:
        return WORDS[finding.action]
    if finding.still_fsdp1:
        return _STILL_FSDP1
    return finding.severity.value


def _messages(findings: Iterable[Finding], width: int) -> list[str]:
    """Each message with its places; on a terminal, the place of several messages is printed once."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in sorted(findings):
        groups.setdefault((finding.code, finding.message), []).append(finding)
    lines = []
    above = None
    for first, *others in groups.values():
        place = (first.path, first.line, first.column, first.construct)
        if width and place == above:
            lines.append(wrapped(printable(first.message), width, "    "))
        else:
            lines.append(_finding_line(first, width, with_kind=False))
        above = place
        if others:
            lines.append(wrapped(f"also {_places(first, others)}", width, "    "))
    return lines


def _places(first: Finding, others: Sequence[Finding]) -> str:
    """`line 42, other.py:7 and 3 more (-v lists them)`."""
    places = []
    for each in others[:_MOST_PLACES]:
        if each.path == first.path:
            places.append(f"line {each.line}")
        else:
            places.append(f"{_name(each.path)}:{each.line}")
    more = len(others) - len(places)
    ending = ""
    if more:
        ending = f" and {more} more (-v lists them)"
    return f"{', '.join(places)}{ending}"


def without_references(findings: Iterable[Finding]) -> list[Finding]:
    """Findings without imports and names that need nobody."""
    return [
        finding
        for finding in findings
        if finding.action is Action.MANUAL or finding.code not in _REFERENCES
    ]


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
    named = "none"
    if settings:
        named = printable(str(settings))
    return [f"settings: {named}", f"{read}: {report.candidates:,} of them may use FSDP1"]


def render_changes(report: Report) -> list[str]:
    """A line for each file that was rewritten, with what was done in it, and for each copy of the runtime."""
    lines = []
    for change in report.rewritten:
        name = shown_path(change.path)
        counts = Counter([f.action for f in report.findings if f.path == name])
        lines.append(f"rewrote {printable(name)}: {_counts(counts)}")
    for folder in report.vendored:
        if copied := sum(change.path.parent == folder for change in report.changes):
            name = printable(shown_path(folder))
            lines.append(f"copied fsdp_migrate.runtime to {name} ({counted(copied, 'file')})")
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


def _nothing_found(report: Report, known: str) -> str:
    read = counted(report.files, "file")
    if report.errors:
        read = "what could be read"
    if known:
        return f"No new FSDP1 of torch in {read}.{known}"
    return f"No FSDP1 of torch in {read}."


def summary(report: Report) -> str:
    """How many constructs were found and how they are handled, in one sentence."""
    known = ""
    if report.known:
        known = f" {counted(report.known, 'finding')} more in the baseline."
    if report.marked:
        known += f" {counted(report.marked, 'finding')} marked by a comment: remove it when done."
    if not report.findings:
        return _nothing_found(report, known)
    assumed = [finding for finding in report.findings if finding.assumption]
    uses = counted(len(report.findings) - len(assumed), "use")
    files = counted(len({finding.path for finding in report.findings}), "file")
    rewritten, runtime, manual = report.count().values()
    rewritten -= len(assumed)
    parts = []
    if rewritten and report.wrote:
        parts.append(f"{rewritten} rewritten for FSDP2")
    elif rewritten:
        parts.append(f"{rewritten} to be rewritten for FSDP2")
    if runtime:
        how = "run with fsdp_migrate.runtime"
        if report.form == "torch":
            how = "unchanged"
        parts.append(f"{runtime} {how}")
    parts.append(f"{_needs(manual)} you{_severities(report.manual)}")
    assumptions = len({finding.message for finding in assumed})
    under = ""
    if assumed:
        under = f" Under {counted(assumptions, 'assumption')} ({ASSUMPTION})."
    form = ""
    if report.form != DEFAULT_FORM:
        form = f" with --form {report.form}"
    return f"{uses} of FSDP1 in {files}{form}: {', '.join(parts)}.{under}{known}"


def _needs(number: int) -> str:
    if number == 1:
        return "1 needs"
    if number:
        return f"{number} need"
    return "none needs"


def _severities(findings: Iterable[Finding]) -> str:
    """` (2 silent, 1 raises, 1 still FSDP1)`."""
    counts = Counter(map(heading_of, findings))
    parts = [f"{counts[kind]} {kind}" for kind in _MEANINGS if counts[kind]]
    if parts:
        return f" ({', '.join(parts)})"
    return ""


def next_steps(
    report: Report,
    paths: Sequence[str],
    form: str = DEFAULT_FORM,
    *,
    is_list: bool = False,
    rewrites: bool = True,
) -> list[tuple[str, str]]:
    """What to do now and the command for it; nothing where nothing is left to do.

    Args:
        is_list: whether all findings are printed, assumptions among them.
        rewrites: whether a file would change.
    """
    manual = report.manual
    # pre-commit names every file
    own = "PATH..."
    if len(paths) <= 5:
        own = shlex.join(map(printable, paths))
    if form == DEFAULT_FORM:
        chosen = ""
    else:
        chosen = f" --form {form}"
    script = "SCRIPT"
    if len(paths) == 1 and paths[0].endswith(".py"):
        script = own
    steps = _about(manual)
    assumed = {finding.message for finding in report.findings if finding.assumption}
    if assumed and not is_list:
        what = f"list {counted(len(assumed), 'assumption')}"
        steps.append((what, f"fsdp-migrate check {own}{chosen}"))
    if report.wrote:
        steps.append(
            ("compare how both train", f"fsdp-migrate verify ORIGINAL --migrated {script}")
        )
        if report.count()["runtime"] and not report.vendored:
            what = "copy fsdp_migrate.runtime, to run without installing fsdp-migrate"
            steps.append((what, f"fsdp-migrate {own}{chosen} --vendor DIR"))
    elif rewrites and len(report.findings) > len(manual):
        steps.append(("try it on a copy", f"fsdp-migrate verify {script}{chosen}"))
        steps.append(("rewrite the files", f"fsdp-migrate {own}{chosen}"))
        if manual:
            what = "rewrite them, and mark what needs you with comments"
            steps.append((what, f"fsdp-migrate {own}{chosen} --mark"))
    return steps


def _about(manual: Sequence[Finding]) -> list[tuple[str, str]]:
    """How to read about findings that need the user, those of the worst severity first, and how to sign one off."""
    kinds = list(_MEANINGS)
    counts = Counter([finding.code for finding in manual])
    worst = dict.fromkeys(counts, len(kinds))
    for each in manual:
        worst[each.code] = min(worst[each.code], kinds.index(heading_of(each)))
    codes = sorted(counts, key=lambda code: (worst[code], -counts[code]))[:_MOST_RULES]
    steps = [
        (f"read about {counted(counts[code], 'finding')}", f"fsdp-migrate explain {code}")
        for code in codes
    ]
    if codes:
        comment = f"# fsdp-migrate: ignore[{codes[0]}]"
        steps.append(("sign off a finding with a comment on its line", comment))
    return steps


def _finding_line(finding: Finding, width: int, *, with_kind: bool = True) -> str:
    place = click.style(f"{_name(finding.path)}:{finding.line}:{finding.column}", bold=True)
    code = click.style(finding.code, fg=_COLOURS[finding.action], bold=True)
    mark = ""
    if finding.severity and with_kind:
        mark = f" [{heading_of(finding)}]"
    construct = printable(finding.construct)
    message = f"`{construct}`: {printable(finding.message)}{mark}"
    if width and len(click.unstyle(f"{place} {code} {message}")) > width:
        return f"{place} {code}\n{wrapped(message, width, '    ')}"
    return f"{place} {code} {message}"


def _name(path: str) -> str:
    """A path at the start of a line: CI systems take `::error ...` and `##...` there for commands."""
    name = printable(path)
    if name.lstrip().startswith(("::", "##")):
        return f"./{name}"
    return name


def _place(problem: Problem) -> str:
    name = _name(problem.path)
    if problem.line:
        return f"{name}:{problem.line}"
    return name


def _counts(counts: Counter[Action]) -> str:
    """`2 plain, 1 runtime`, without what is none."""
    return ", ".join(f"{counts[action]} {word}" for action, word in WORDS.items() if counts[action])


def counted(number: int, noun: str) -> str:
    """`1 loss`, `2,000 losses`."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith(("s", "ch")):
        return f"{number:,} {noun}es"
    return f"{number:,} {noun}s"
