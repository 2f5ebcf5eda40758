"""Comments for findings that a later run could not make again, because the rewrite takes what they stand on.

`check` lists each comment (FSDP098) until somebody removes it, so that a finding is not forgotten with the terminal.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from fsdp_migrate.discover import Discovered
from fsdp_migrate.engine import analyse
from fsdp_migrate.findings import Action, Finding
from fsdp_migrate.report import Change, Report
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source, shown_path, source_from_bytes

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def mark(report: Report, found: Discovered, options: Options) -> int:
    """Put comments into the changes of a report; returns how many findings they stand for."""
    files = {shown_path(change.path): change for change in report.changes}
    open_ = [each for each in report.findings if each.path in files and _is_open(each)]
    if not open_:
        return 0
    after = {change.path: change.after for change in report.changes}
    again = analyse(replace(found, contents={**found.contents, **after}), options)
    left = Counter([(each.path, each.code, each.action) for each in again.findings])
    lost: dict[str, list[Finding]] = {}
    for each in open_:
        key = each.path, each.code, each.action
        if left[key]:
            left[key] -= 1
        else:
            lost.setdefault(each.path, []).append(each)
    marked = 0
    for number, change in enumerate(report.changes):
        findings = lost.get(shown_path(change.path), [])
        after_marks = None
        if findings:
            after_marks = _with_comments(change, findings)
        if after_marks is not None:
            report.changes[number] = replace(change, after=after_marks)
            marked += len(findings)
    return marked


def _is_open(finding: Finding) -> bool:
    """Whether a person has to look at it: what is by hand, and what the torch form assumes."""
    return finding.action is Action.MANUAL or finding.assumption


def _with_comments(change: Change, findings: Sequence[Finding]) -> bytes | None:
    """A changed program with a comment above each statement that has a finding; None where that is impossible."""
    source = source_from_bytes(change.path, shown_path(change.path), change.after)
    if change.path.suffix != ".py" or not isinstance(source, Source):
        return None
    text = source.decoded
    lines = _LINE.findall(text)
    places = _lines_after(change.before.decode(source.encoding, "replace"), text)
    starts = _first_lines(text)
    codes: dict[int, set[str]] = {}
    for each in findings:
        line = places[min(each.line, len(places) - 1)]
        codes.setdefault(starts[min(line, len(starts) - 1)], set()).add(each.code)
    for line in sorted(codes, reverse=True):
        own = lines[line - 1]
        indent = own[: len(own) - len(own.lstrip(" \t"))]
        end = own[len(own.rstrip("\r\n")) :] or "\n"
        lines.insert(
            line - 1, f"{indent}# fsdp-migrate: review[{', '.join(sorted(codes[line]))}]{end}"
        )
    marked = "".join(lines)
    if ast.dump(ast.parse(marked)) != ast.dump(ast.parse(text)):  # below a backslash
        return None
    return marked.encode(source.encoding)


def _lines_after(before: str, after: str) -> list[int]:
    """For each line of a program, from 1, the line of the migrated one that stands in its place."""
    old = _LINE.findall(before)
    new = _LINE.findall(after)
    places = [1] * (len(old) + 1)
    for kind, i, i_end, j, j_end in SequenceMatcher(None, old, new, False).get_opcodes():
        for line in range(i, i_end):
            if kind == "equal":
                shift = line - i
            else:
                shift = min(line - i, max(j_end - j - 1, 0))
            places[line + 1] = j + shift + 1
    return places


def _first_lines(text: str) -> list[int]:
    """For each line of a program, from 1, the first line of the innermost statement that it belongs to."""
    lines = _LINE.findall(text)
    starts = list(range(len(lines) + 2))
    statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    # Inner statements come later, and take their lines from the outer ones.
    for node in statements:
        first = node.lineno
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                first = min([first, *[each.lineno for each in node.decorator_list]])
        for line in range(first, (node.end_lineno or node.lineno) + 1):
            starts[line] = first
    return starts
