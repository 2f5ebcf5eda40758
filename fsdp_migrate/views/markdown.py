"""The report as Markdown, for the text of a pull request."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from fsdp_migrate.findings import Action, Finding
from fsdp_migrate.report import Report
from fsdp_migrate.source import shown_path
from fsdp_migrate.views.terminal import printable
from fsdp_migrate.views.text import summary

_MOST = 200  # findings of a list: GitHub cuts a text at 65,536 characters


def render_markdown(report: Report, steps: Sequence[tuple[str, str]]) -> str:
    """What changed by file, what a person must look at, what is on the bridge, and what to do next."""
    return "\n".join(_lines(report, steps))


def _lines(report: Report, steps: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield from ("## FSDP1 to FSDP2", "", summary(report), "")
    if report.findings:
        yield "| file | plain | runtime | by hand | |"
        yield "|---|--:|--:|--:|---|"
        changed = {shown_path(change.path) for change in report.changes}
        done = "rewritten" if report.wrote else "would be rewritten"
        for path, group in groupby(sorted(report.findings), key=lambda finding: finding.path):
            counts = Counter(finding.action for finding in group)
            numbers = " | ".join(str(counts[action] or "") for action in Action)
            yield f"| {_code(path)} | {numbers} | {done if path in changed else 'as it was'} |"
        yield ""
    for problem in sorted(report.errors):
        yield f"**Error:** {_code(problem.path)}, line {problem.line}: {escaped(problem.message)}  "
    yield from _list("By hand", report.manual, "open")
    on_bridge = [finding for finding in report.findings if finding.action is Action.RUNTIME]
    yield from _list("Served by the runtime", on_bridge)
    if steps:
        yield from ("### Next", "")
        yield from (f"- {what}: `{command}`" for what, command in steps)


def _list(title: str, findings: Sequence[Finding], state: str = "") -> Iterator[str]:
    if not findings:
        return
    yield f"<details {state}><summary>{title}: {len(findings)}</summary>".replace(" >", ">")
    yield ""
    for each in sorted(findings)[:_MOST]:
        place = _code(f"{each.path}:{each.line}")
        yield f"- {place} {each.code} {_code(each.construct)}: {escaped(each.message)}"
    if len(findings) > _MOST:
        yield f"- {len(findings) - _MOST} more"
    yield from ("", "</details>", "")


def _code(text: str) -> str:
    """A code span, whatever backticks and bars are in it."""
    text = printable(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}".replace("|", "\\|")


def escaped(text: str) -> str:
    """Words with code spans; nothing in them is HTML, a link, or the name of a person."""
    parts = re.split(r"(`[^`]+`)", printable(text))
    signs = re.compile(r"([\\<>\[\]*@#|]|\b_|_\b)")
    return "".join(part if part.startswith("`") else signs.sub(r"\\\1", part) for part in parts)
