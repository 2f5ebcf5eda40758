"""The rule catalogue and the words of the summary."""

from pathlib import Path

import click

from fsdp_migrate.findings import Action, Finding, Problem
from fsdp_migrate.report import Change, Report
from fsdp_migrate.views.text import next_steps, render_findings, summary


def finding(path: str, line: int, action: Action) -> Finding:
    return Finding(path, line, 1, line, 2, "FSDP002", "name", action, "Message.", "FSDP()")


FINDINGS = [
    finding("b.py", 1, Action.MANUAL),
    finding("a.py", 9, Action.RUNTIME),
    finding("a.py", 2, Action.REWRITE),
    finding("a.py", 3, Action.REWRITE),
]


def test_findings_are_sorted_and_marked() -> None:
    assert [click.unstyle(line) for line in render_findings(FINDINGS)] == [
        "a.py:2:1 FSDP002 `FSDP()`: Message.",
        "a.py:3:1 FSDP002 `FSDP()`: Message.",
        "a.py:9:1 FSDP002 `FSDP()`: Message. [runtime]",
        "",
        "b.py:1:1 FSDP002 `FSDP()`: Message. [by hand]",
    ]


def test_a_file_that_could_not_be_read_is_none_without_fsdp1() -> None:
    unread = Report(files=1, errors=[Problem("a.py", 1, "does not parse")])
    assert summary(unread) == "No FSDP1 of torch in what could be read."


def test_the_next_steps_are_named() -> None:
    manual, change = [FINDINGS[0]], Change(Path("a.py"), b"1", b"2")
    by_hand = ("what to do about 1 finding by hand", "fsdp-migrate explain FSDP002")
    mark = "write it, with a comment where a later check could not find a finding again"
    many = [f"{number}.py" for number in range(6)]
    assert next_steps(Report(FINDINGS), many)[-2][1] == "fsdp-migrate PATH..."
    assert next_steps(Report(FINDINGS), ["a b", "c"]) == [
        by_hand,
        ("try it on a copy", "fsdp-migrate verify SCRIPT"),
        ("write it", "fsdp-migrate 'a b' c"),
        (mark, "fsdp-migrate 'a b' c --mark"),
    ]
    assert next_steps(Report(manual), ["."]) == [by_hand]
    assert next_steps(Report(FINDINGS), ["."], "torch")[1:] == [
        ("try it on a copy", "fsdp-migrate verify SCRIPT --form torch"),
        ("write it", "fsdp-migrate . --form torch"),
        (mark, "fsdp-migrate . --form torch --mark"),
    ]
    assert next_steps(Report(FINDINGS, changes=[change], wrote=True), ["."]) == [
        by_hand,
        ("compare what both train", "fsdp-migrate verify ORIGINAL --migrated SCRIPT"),
        (
            "copy the runtime, to run where fsdp-migrate is not installed",
            "fsdp-migrate . --vendor DIR",
        ),
    ]
    assert len(next_steps(Report(FINDINGS[2:], changes=[change], wrote=True), ["."])) == 1
    assert next_steps(Report(), ["."]) == []
