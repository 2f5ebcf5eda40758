"""The report as one HTML page: each file's diff, with the findings beside their lines."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from html import escape
from pathlib import Path

from fsdp_migrate.findings import Finding
from fsdp_migrate.report import Report
from fsdp_migrate.source import shown_path
from fsdp_migrate.views.terminal import printable
from fsdp_migrate.views.text import WORDS, heading_of, summary

_AROUND = 3  # lines that are shown around a change and a finding
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --add: #2da04430; --del: #e5534b30; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem 2rem; max-width: 110rem; }
h2 { font-size: 1rem; margin: 2rem 0 .3rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; }
td { vertical-align: top; padding: 0 .6rem; }
td.number { width: 3.2rem; text-align: right; color: GrayText; font: 12px/1.6 ui-monospace, monospace; }
td.code { width: 55%; font: 13px/1.6 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
td.said { font-size: 13px; border-left: 1px solid var(--line); overflow-wrap: anywhere; }
tr.add td.code { background: var(--add); } tr.del td.code { background: var(--del); }
tr.gap td { border-bottom: 1px dashed var(--line); height: .5rem; }
.tag { border-radius: .7rem; padding: 0 .5rem; font-size: 11px; color: #fff; white-space: nowrap; }
.rewrite { background: #1a7f37; } .runtime { background: #9a6700; } .manual { background: #cf222e; }
"""


@dataclass
class _Row:
    kind: str
    number: int
    code: str
    said: list[Finding] = field(default_factory=list)


def document(title: str, style: str, body: Iterable[str]) -> str:
    """A page under its title; it loads and runs nothing, whatever is in its text."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>\n{style}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *body,
            "</body></html>",
        ]
    )


def prose(text: str) -> str:
    """A message in HTML, with what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(printable(text)))


def render_html(report: Report, steps: Sequence[tuple[str, str]]) -> str:
    """The whole page."""
    changed = [shown_path(change.path) for change in report.rewritten]
    paths = sorted({*changed, *[finding.path for finding in report.findings]})
    lines = [line for path in paths for line in _section(path, report)]
    head = f"<p>{escape(summary(report))}</p>"
    return document("FSDP1 to FSDP2", _STYLE, [head, *_steps(report, steps), *lines])


def _steps(report: Report, steps: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield "<ul>"
    for each in sorted(report.errors):
        yield f"<li>Error: {escape(printable(each.path))}:{each.line}: {escape(printable(each.message))}</li>"
    for what, command in steps:
        yield f"<li>Next: {escape(what)}: <code>{escape(printable(command))}</code></li>"
    yield "</ul>"


def _section(path: str, report: Report) -> Iterator[str]:
    yield f"<section><h2>{escape(printable(path))}</h2><table>"
    rows = _rows(path, report)
    near = {
        index + step
        for index, row in enumerate(rows)
        if row.said or row.kind != "same"
        for step in range(-_AROUND, _AROUND + 1)
    }
    left_out = False
    for index, row in enumerate(rows):
        if index not in near:
            left_out = True
            continue
        if left_out:
            yield '<tr class="gap"><td class="number"></td><td class="code"></td><td></td></tr>'
            left_out = False
        said = "<br>".join(map(_said, row.said))
        code = escape(printable(row.code, keep="\t"))
        cells = f'<td class="number">{row.number or ""}</td><td class="code">{code}</td>'
        yield f'<tr class="{row.kind}">{cells}<td class="said">{said}</td></tr>'
    yield "</table></section>"


def _rows(path: str, report: Report) -> list[_Row]:
    """The lines of a file, before and after, each finding at its line before."""
    before, after = _contents(path, report)
    rows: list[_Row] = []
    for kind, start, end, new, last in SequenceMatcher(None, before, after, False).get_opcodes():
        if kind == "equal":
            old = "same"
        else:
            old = "del"
        rows += [_Row(old, index + 1, before[index]) for index in range(start, end)]
        if kind != "equal":
            rows += [_Row("add", 0, line) for line in after[new:last]]
    at = {row.number: row for row in rows if row.number}
    for finding in sorted(report.findings):
        if finding.path == path:
            if finding.line not in at:  # the file cannot be read any more
                at[finding.line] = _Row("same", finding.line, finding.construct)
                rows.append(at[finding.line])
            at[finding.line].said.append(finding)
    return rows


def _contents(path: str, report: Report) -> tuple[list[str], list[str]]:
    for change in report.changes:
        if shown_path(change.path) == path:
            return _lines(change.before), _lines(change.after)
    file = Path(path)
    if file.is_file():
        lines = _lines(file.read_bytes())
    else:
        lines = []
    return lines, lines


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _said(finding: Finding) -> str:
    word = heading_of(finding)
    if finding.severity:
        word = f"{WORDS[finding.action]}: {word}"
    tag = f'<span class="tag {finding.action.value}">{word}</span>'
    construct = f"<code>{escape(printable(finding.construct))}</code>"
    return f"{tag} {finding.code} {construct}: {prose(finding.message)}"
