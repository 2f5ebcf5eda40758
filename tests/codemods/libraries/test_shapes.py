"""What each shape of a configuration becomes; that nothing else changes, and a second run nothing at all."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from fsdp_migrate.engine import analyse_source
from fsdp_migrate.findings import Action
from fsdp_migrate.report import Report
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

from .shapes import SHAPES, Shape

EACH = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.title)


@cache
def analysed(text: str, ending: str, options: Options | None = None) -> tuple[Report, str]:
    source = Source(Path(f"/nowhere/fsdp.{ending}"), f"fsdp.{ending}", text.encode())
    report = analyse_source(source, options)
    return report, report.changes[0].after.decode() if report.changes else text


@EACH
def test_it_becomes_what_it_means(shape: Shape) -> None:
    report, after = analysed(shape.before, shape.ending)
    said = [each.message for each in (*report.findings, *report.errors)]
    assert after == (shape.before if shape.after is None else shape.after)
    assert any(shape.says in message for message in said) == (
        shape.after is not None or bool(shape.says)
    )


@EACH
def test_a_second_run_changes_nothing_and_says_nothing_new(shape: Shape) -> None:
    _, after = analysed(shape.before, shape.ending)
    again, same = analysed(after, shape.ending)
    assert same == after
    assert shape.after is None or not (again.findings or again.errors)


@EACH
def test_every_line_that_changes_has_a_finding_and_no_comment_is_lost(shape: Shape) -> None:
    report, after = analysed(shape.before, shape.ending)
    spoken = {line for f in report.findings for line in range(f.line, f.end_line + 1)}
    kept = Counter(after.splitlines())
    for number, line in enumerate(shape.before.splitlines(), 1):
        assert kept[line] or number in spoken
    found = [re.findall(r"(?:^|\s)(#.*)", text, re.M) for text in (shape.before, after)]
    assert Counter(found[0]) == Counter(found[1])


@pytest.mark.parametrize(
    "shape", [s for s in SHAPES if s.ending != "py"], ids=lambda shape: shape.title
)
def test_check_and_the_bridge_write_nothing(shape: Shape) -> None:
    full = analysed(shape.before, shape.ending)[0]
    check = analysed(shape.before, shape.ending, Options(only_checks=True))[0]
    bridge = analysed(shape.before, shape.ending, Options(form="bridge"))[0]
    assert check.findings == full.findings
    assert not check.changes
    assert not bridge.changes
    assert len(bridge.findings) == len(full.findings)


def test_a_comment_on_one_setting_keeps_its_section_whole() -> None:
    shape = next(shape for shape in SHAPES if shape.title == "the full documented configuration")
    text = shape.before.replace("# PEFT", "# fsdp-migrate: ignore[FSDP801]")
    report, after = analysed(text, "yaml")
    assert after == text
    assert {finding.action for finding in report.findings} == {Action.MANUAL}
    assert all("a comment silences a part of it" in finding.message for finding in report.findings)


@pytest.mark.parametrize("way", ["select", "ignore", "comment"])
def test_a_rule_that_is_not_asked_for_leaves_its_section(way: str) -> None:
    shape = next(shape for shape in SHAPES if shape.title == "SHARD_GRAD_OP")
    options = {
        "select": Options(select=frozenset({"FSDP001"})),
        "ignore": Options(ignore=frozenset({"FSDP801"})),
        "comment": Options(),
    }[way]
    text = shape.before
    if way == "comment":
        text = re.sub(r"(fsdp_config:|OP)$", r"\1  # fsdp-migrate: ignore", text, flags=re.M)
    report, after = analysed(text, "yaml", options)
    assert (report.findings, after) == ([], text)


def test_the_comparison_has_every_shape() -> None:
    """What the libraries say of them is tried by `make thorough` alone."""
    page = (Path(__file__).parents[3] / "docs" / "comparison.md").read_text("utf-8")
    titles = re.findall(r"^\| (.+?) \| .*\| .*\|$", page.partition("\n## Editing")[0], re.M)
    assert titles == ["shape", *(shape.title for shape in SHAPES if shape.ending != "py")]
