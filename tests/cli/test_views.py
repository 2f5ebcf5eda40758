"""The rule catalogue and the words of the summary."""

from pathlib import Path

import click

from fsdp_migrate.findings import IN_AUTO, Action, Finding, Problem, Severity
from fsdp_migrate.report import Change, Report
from fsdp_migrate.views.text import (
    next_steps,
    render_findings,
    render_grouped,
    summary,
    without_references,
)


def finding(path: str, line: int, action: Action) -> Finding:
    severity = Severity.SILENT if action is Action.MANUAL else None
    place = (path, line, 1, line, 2)
    return Finding(*place, "FSDP002", "name", action, "Message.", "FSDP()", severity)


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
        "a.py:9:1 FSDP002 `FSDP()`: Message.",
        "",
        "b.py:1:1 FSDP002 `FSDP()`: Message. [silent]",
    ]


def test_a_message_is_printed_once_with_its_places_and_the_worst_come_last() -> None:
    prints = finding("c.py", 1, Action.MANUAL)._replace(severity=Severity.PRINTS, message="Other.")
    found = [*FINDINGS, prints, *(finding("b.py", line, Action.MANUAL) for line in range(2, 9))]
    assert [click.unstyle(line) for line in render_grouped(found)] == [
        "rewritten (2): fsdp-migrate replaces it by code for FSDP2",
        "a.py:2:1 FSDP002 `FSDP()`: Message.",
        "    also line 3",
        "",
        "runs as before (1): works under FSDP2 as it is, or with fsdp_migrate.runtime",
        "a.py:9:1 FSDP002 `FSDP()`: Message.",
        "",
        "silent (8): trains, saves or returns something else, without an error",
        "b.py:1:1 FSDP002 `FSDP()`: Message.",
        "    also line 2, line 3, line 4, line 5, line 6 and 2 more (-v lists them)",
        "",
        "prints (1): only printed text changes, or a setting or comment is out of date",
        "c.py:1:1 FSDP002 `FSDP()`: Other.",
    ]


def test_assumptions_of_one_place_are_below_it_on_a_terminal() -> None:
    """What their heading says is not repeated, and in a pipe each is one line."""
    texts = [f"Assumes one. {IN_AUTO}", "Assumes two. If not, use `--form auto`."]
    one, two = [
        finding("a.py", 3, Action.REWRITE)._replace(message=text, assumption=True) for text in texts
    ]
    heading, *lines = [click.unstyle(line) for line in render_grouped([one, two], width=60)]
    assert "use `--form auto`" in " ".join(heading.split())
    assert lines == [
        "a.py:3:1 FSDP002 `FSDP()`: Assumes one.",
        "    Assumes two. If not, use `--form auto`.",
    ]
    assert click.unstyle(render_grouped([one, two])[-1]).startswith("a.py:3:1 FSDP002 `FSDP()`: A")


def test_imports_and_names_are_left_out_unless_they_need_the_user() -> None:
    names = [each._replace(code="FSDP017") for each in FINDINGS]
    assert without_references([*FINDINGS, *names]) == [*FINDINGS, names[0]]


def test_a_file_that_could_not_be_read_is_none_without_fsdp1() -> None:
    unread = Report(files=1, errors=[Problem("a.py", 1, "does not parse")])
    assert summary(unread) == "No FSDP1 of torch in what could be read."


def test_the_next_steps_are_named() -> None:
    manual, change = [FINDINGS[0]], Change(Path("a.py"), b"1", b"2")
    needs_user = [
        ("read about 1 finding", "fsdp-migrate explain FSDP002"),
        ("sign off a finding with a comment on its line", "# fsdp-migrate: ignore[FSDP002]"),
    ]
    mark = "rewrite them, and mark what needs you with comments"
    many = [f"{number}.py" for number in range(6)]
    assert next_steps(Report(FINDINGS), many)[-2][1] == "fsdp-migrate PATH..."
    assert next_steps(Report(FINDINGS), ["a b", "c"]) == [
        *needs_user,
        ("try it on a copy", "fsdp-migrate verify SCRIPT"),
        ("rewrite the files", "fsdp-migrate 'a b' c"),
        (mark, "fsdp-migrate 'a b' c --mark"),
    ]
    assert next_steps(Report(manual), ["."]) == needs_user
    assert next_steps(Report(FINDINGS), ["."], "torch")[2:] == [
        ("try it on a copy", "fsdp-migrate verify SCRIPT --form torch"),
        ("rewrite the files", "fsdp-migrate . --form torch"),
        (mark, "fsdp-migrate . --form torch --mark"),
    ]
    assert next_steps(Report(FINDINGS, changes=[change], wrote=True), ["."]) == [
        *needs_user,
        ("compare how both train", "fsdp-migrate verify ORIGINAL --migrated SCRIPT"),
        (
            "copy fsdp_migrate.runtime, to run without installing fsdp-migrate",
            "fsdp-migrate . --vendor DIR",
        ),
    ]
    assert len(next_steps(Report(FINDINGS[2:], changes=[change], wrote=True), ["."])) == 1
    assert next_steps(Report(), ["."]) == []
    assert next_steps(Report(FINDINGS), ["."], rewrites=False) == needs_user
    assert next_steps(Report(FINDINGS), ["a.py"])[-3][1] == "fsdp-migrate verify a.py"
