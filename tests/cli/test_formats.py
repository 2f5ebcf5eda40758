"""The report for continuous integration, and for people to read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fsdp_migrate.codemods.registry import rule_for
from fsdp_migrate.findings import Action, Finding, Problem, Severity
from fsdp_migrate.report import Change, Report
from fsdp_migrate.views import rendered
from fsdp_migrate.views.terminal import printable

Cli = Callable[..., Any]

EVIL = "</script><img src=x onerror=alert(1)>"


def finding(line: int, code: str = "FSDP002", action: Action = Action.REWRITE) -> Finding:
    message = "100% done,\nbut: see | `x` " + EVIL
    return Finding("a b/x.py", line, 3, line, 9, code, "rule", action, message, "FSDP(m)")


@pytest.fixture
def report(folder: Path) -> Report:
    """Two findings of one rule, one of another, and an error."""
    found = [finding(2), finding(7), finding(4, "FSDP361", Action.MANUAL)]
    return Report(found, [Problem("bad.py", 0, "does not parse")])


def test_sarif_is_what_the_standard_has(report: Report) -> None:
    """Compared as a whole: this document is valid against the schema of SARIF 2.1.0."""
    document = json.loads(rendered(report, "sarif"))
    assert document.keys() == {"$schema", "version", "runs"}
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    assert run.keys() == {"tool", "columnKind", "invocations", "results"}
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["FSDP002", "FSDP361"]
    known = rule_for("FSDP361")
    assert known is not None
    assert rules[1] == {
        "id": "FSDP361",
        "name": "comm-hook",
        "shortDescription": {"text": known.summary},
        "fullDescription": {"text": known.summary},
        "help": {"text": known.page, "markdown": known.page},
    }
    assert run["results"][1] == {
        "ruleId": "FSDP361",
        "ruleIndex": 1,
        "level": "error",
        "message": {"text": f"FSDP(m): {finding(1).message}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": "a%20b/x.py", "uriBaseId": "%SRCROOT%"},
                    "region": {"startLine": 4, "startColumn": 3, "endLine": 4, "endColumn": 9},
                }
            }
        ],
    }
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    (notification,) = invocation["toolExecutionNotifications"]
    place = {"physicalLocation": {"artifactLocation": {"uri": "bad.py", "uriBaseId": "%SRCROOT%"}}}
    text = {"text": "does not parse"}
    assert notification == {"level": "error", "message": text, "locations": [place]}


def test_github_commands_are_one_line_each(report: Report) -> None:
    lines = rendered(report, "github").splitlines()
    assert len(lines) == 4
    assert lines[1] == (
        "::error file=a b/x.py,line=4,endLine=4,title=FSDP361 rule,col=3,endColumn=9::FSDP(m): "
        f"100%25 done,%0Abut: see | `x` {EVIL}"
    )
    assert lines[3] == "::error file=bad.py,line=1::does not parse"


def test_gitlab_has_an_object_for_each_finding(report: Report) -> None:
    """Its keys are those that GitLab documents for Code Quality reports."""
    report.findings.append(finding(9, "FSDP361", Action.MANUAL)._replace(severity=Severity.RAISES))
    entries = json.loads(rendered(report, "gitlab"))
    assert [(each["check_name"], each["severity"]) for each in entries] == [
        ("FSDP002", "info"),
        ("FSDP361", "info"),
        ("FSDP002", "info"),
        ("FSDP361", "major"),
        ("error", "blocker"),
    ]
    assert entries[0].keys() == {"description", "check_name", "fingerprint", "severity", "location"}
    assert entries[0]["location"] == {"path": "a b/x.py", "lines": {"begin": 2, "end": 2}}
    assert entries[0]["description"].startswith("FSDP(m): 100% done,")
    assert entries[-1]["location"] == {"path": "bad.py", "lines": {"begin": 1}}
    assert len({each["fingerprint"] for each in entries}) == len(entries)


def test_a_fingerprint_does_not_depend_on_lines(report: Report) -> None:
    before = [each["fingerprint"] for each in json.loads(rendered(report, "gitlab"))]
    moved = [each._replace(line=each.line + 5) for each in report.findings]
    after = json.loads(rendered(Report(moved, report.errors), "gitlab"))
    assert [each["fingerprint"] for each in after] == before


def test_junit_has_a_failure_for_each_finding(report: Report) -> None:
    odd = finding(9)._replace(path='b/"<\x07&>\udcff.py', message="a\x00b ]]> c")
    report.findings.append(odd)
    root = ElementTree.fromstring(rendered(report, "junit").encode())
    assert root.tag == "testsuites"
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("5", "4", "1")
    one, other, error = root
    assert (one.get("name"), one.get("tests"), one.get("failures")) == ("a b/x.py", "3", "3")
    case = one[1]
    assert case.get("name") == "FSDP361 rule: line 4, column 3"
    assert (case.get("classname"), case.get("file"), case.get("line")) == ("a b/x.py", "a b/x.py", "4")  # fmt: skip
    (failure,) = case
    assert failure.get("type") == "error"
    assert failure.get("message") == f"FSDP(m): {printable(finding(4).message)}"
    assert str(failure.text).startswith("a b/x.py:4:3 FSDP361 FSDP(m): 100% done,")
    assert other.get("name") == 'b/"<\\x07&>\\udcff.py'
    assert [each.get("message") for each in error.iter("error")] == ["does not parse"]


def test_junit_of_nothing_is_a_test_that_passes() -> None:
    root = ElementTree.fromstring(rendered(Report([], []), "junit").encode())
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("1", "0", "0")
    assert len([*root.iter("testcase")]) == 1


def test_paths_are_those_of_the_repository(
    real_cli: Cli, repository: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = repository.root / "sub folder"
    inner.mkdir()
    (inner / "x.py").write_text("from torch.distributed.fsdp import FullyShardedDataParallel\n")
    monkeypatch.chdir(inner)
    assert real_cli("check", "x.py", "--format", "github").text.startswith(
        "::warning file=sub folder/x.py,line=1"
    )
    (entry, *_) = json.loads(real_cli("check", ".", "--format", "gitlab").text)
    assert entry["location"]["path"] == "sub folder/x.py"
    assert 'file="sub folder/x.py"' in real_cli("check", ".", "--format", "junit").text
    sarif = json.loads(real_cli("check", ".", "--format", "sarif").text)
    place = sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "sub%20folder/x.py"


def test_a_page_escapes_what_it_shows(report: Report, folder: Path) -> None:
    before, after = f"x = 1\n# {EVIL}\n".encode(), f"x = 2\n# {EVIL}\n".encode()
    report.changes.append(Change(folder / "a b" / "x.py", before, after))
    page = rendered(report, "html", [("write it", f"fsdp-migrate {EVIL}")])
    assert EVIL not in page
    assert "<script" not in page
    assert '<tr class="del"><td class="number">1</td><td class="code">x = 1</td>' in page
    assert '<tr class="add"><td class="number"></td><td class="code">x = 2</td>' in page
    row = next(line for line in page.splitlines() if ">2</td>" in line)
    assert "FSDP002 <code>FSDP(m)</code>" in row, "the finding is beside its line"


def test_markdown_has_a_row_a_file_and_a_list_by_hand(report: Report) -> None:
    text = rendered(report, "markdown", [("write it", "fsdp-migrate .")])
    assert "| `a b/x.py` | 2 |  | 1 | unchanged |" in text
    assert "| 2 | FSDP002 | `FSDP(m)`: 100% done" in text
    assert "<details open><summary>Needs you: 1</summary>" in text
    assert EVIL not in text
    assert "write it" not in text, "what to do next is not for those who review the change"


def section(text: str, title: str) -> str:
    """A part of the text of a pull request, below its heading."""
    return text.partition(f"### {title}\n")[2].partition("\n### ")[0]


def test_a_pull_request_says_what_a_reviewer_asks(folder: Path) -> None:
    assumed = finding(3, "FSDP003")._replace(assumption=True, message="Assumes it.")
    clipped = [finding(line, "FSDP302", Action.MANUAL) for line in range(10, 17)]
    files = finding(20, "FSDP336", Action.MANUAL)._replace(message="saves shards")
    option = finding(30, "FSDP017", Action.RUNTIME)
    policies = [finding(41, "FSDP152"), finding(40, "FSDP152")._replace(message="`requires_grad`")]
    found = [assumed, assumed._replace(line=5), *clipped, files, option, finding(2), *policies]
    text = rendered(Report(found, form="torch"), "markdown")
    assert "torch alone" in text
    assert "FSDP003" not in section(text, "What is replaced")
    changes = section(text, "What changes on purpose")
    assert changes.count("- Gradients are clipped by the global norm") == 1
    assert changes.rstrip().endswith("`a b/x.py:14` and 2 more")
    assert section(text, "What is assumed").strip().splitlines() == [
        "- Assumes it. (2 places: `a b/x.py:3`, `a b/x.py:5`)"
    ]
    assert "- Except: saves shards (`a b/x.py:20`)" in section(text, "What remains compatible")
    assert "The program then needs torch 2.8 or newer." in text
    assert "verify SCRIPT --form torch -- " in section(text, "What `fsdp-migrate verify` showed")
    later = section(text, "What a follow-up removes")
    assert "`a b/x.py:30`" in later
    assert "trained parameters are units of their own: `a b/x.py:40`\n" in later
    auto = rendered(Report([option], form="auto"), "markdown")
    assert "| 1 | FSDP017 |" in section(auto, "What uses `fsdp_migrate.runtime`")
    assert "- the lines with `like_fsdp1`" in section(auto, "What a follow-up removes")
    assert "What is assumed" not in auto


def test_a_pull_request_shows_what_verify_showed(real_cli: Cli, folder: Path) -> None:
    (folder / "x.py").write_text("from torch.distributed.fsdp import FullyShardedDataParallel\n")
    result = {"equal": True, "line": "same: 4 losses", "environment": {"command": "torchrun x"}}
    (folder / "v.json").write_text(json.dumps(result))
    real_cli("check", "x.py", "--report", "r.md", "--verified", "v.json")
    shown = section((folder / "r.md").read_text(), "What `fsdp-migrate verify` showed")
    assert shown.split() == ["✅", "same:", "4", "losses", "By", "`torchrun", "x`"]
    for text in ("{", "[]", '{"equal": true}'):
        (folder / "v.json").write_text(text)
        refused = real_cli("check", "x.py", "--report", "r.md", "--verified", "v.json")
        assert refused.code == 2
        assert refused.err.startswith("Error: v.json: ")


def test_paths_of_a_pull_request_are_those_of_the_repository(
    real_cli: Cli, repository: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = repository.root / "sub"
    inner.mkdir()
    (inner / "x.py").write_text("from torch.distributed.fsdp import FullyShardedDataParallel\n")
    monkeypatch.chdir(inner)
    assert real_cli("x.py", "--allow-dirty", "--report", "r.md").code == 0
    assert "| `sub/x.py` |  | 1 |  | rewritten |" in (inner / "r.md").read_text()


def test_a_report_has_the_format_of_its_name(real_cli: Cli, folder: Path) -> None:
    (folder / "x.py").write_text("from torch.distributed.fsdp import FullyShardedDataParallel\n")
    starts = {"r.html": "<!doctype html>", "r.md": "## FSDP1 to FSDP2", "r.sarif": "{", "r": "{"}
    starts["r.xml"] = "<?xml"
    for name, start in starts.items():
        assert real_cli("check", "x.py", "--report", name).code == 1
        assert (folder / name).read_text().startswith(start)
    assert json.loads((folder / "r.sarif").read_text())["version"] == "2.1.0"
    assert "findings" in json.loads((folder / "r").read_text())
    page = (folder / "r.html").read_text()
    assert page.count("Next: ") == 2
    assert "from <code>fsdp_migrate.runtime</code>." in page
    assert real_cli("x.py", "--diff", "--format", "github").code == 2


def test_a_report_is_no_input_and_says_what_was_written(real_cli: Cli, folder: Path) -> None:
    text = "from torch.distributed.fsdp import FullyShardedDataParallel  # fsdp-migrate: ignore[FSDP123]\n"
    (folder / "x.py").write_text(f"{text}FullyShardedDataParallel(m)\n")
    first = real_cli("check", ".", "--report", "findings.json")
    assert real_cli("check", ".") == first
    for argument, word in (("--diff", "would be rewritten"), ("--allow-dirty", "rewritten")):
        assert real_cli("x.py", argument, "--report", "r.md").code == 0
        assert (folder / "r.md").read_text().count(f"| {word} |\n") == 1
