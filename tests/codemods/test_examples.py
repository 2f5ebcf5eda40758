"""Every rule's examples: they are what `explain` prints, so they must be what the tool does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from fsdp_migrate.codemods.apply import comments
from fsdp_migrate.codemods.registry import CONTRACT, all_rules, rule_for
from fsdp_migrate.codemods.rule import Example, Rule
from fsdp_migrate.engine import analyse_source
from fsdp_migrate.index.names import FSDP2_NAMES
from fsdp_migrate.report import Report
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

EXAMPLES = [
    pytest.param(rule, example, id=f"{rule.code} {example.title}")
    for rule in all_rules()
    for example in rule.examples
]
CONTRACT_CODES = {rule.code for module in CONTRACT for rule in module.RULES}


def analyse(text: str, rule: Rule | None = None) -> tuple[Report, str]:
    source = Source(Path("/nowhere/example.py"), "example.py", text.encode())
    fsdp2 = rule is not None and rule.code in CONTRACT_CODES
    report = analyse_source(source, Options(fsdp2=fsdp2))
    assert not report.errors, report.errors
    return report, report.changes[0].after.decode() if report.changes else text


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_example_becomes_what_it_says(rule: Rule, example: Example) -> None:
    if (
        rule.code in CONTRACT_CODES
    ):  # they change nothing; what is FSDP1's in an example is for other rules
        assert example.after is None
        return
    _, after = analyse(example.before)
    assert after == (example.before if example.after is None else example.after)


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_rule_speaks_of_its_example(rule: Rule, example: Example) -> None:
    report, _ = analyse(example.before, rule)
    own = [finding for finding in report.findings if finding.code == rule.code]
    if example.quiet:
        assert not own
        return
    assert own
    assert any(example.message in f"{finding.construct} {finding.message}" for finding in own)


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_second_run_changes_nothing(rule: Rule, example: Example) -> None:
    _, once = analyse(example.before)
    _, twice = analyse(once)
    assert twice == once


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_no_comment_is_lost(rule: Rule, example: Example) -> None:
    _, after = analyse(example.before)
    assert sorted(comments(example.before)) == sorted(
        comment for comment in comments(after) if not comment.startswith("# fsdp-migrate:")
    )


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_every_line_that_uses_fsdp1_has_a_finding(rule: Rule, example: Example) -> None:
    report, _ = analyse(example.before, rule)
    lines = {finding.line for finding in report.findings}
    tree = ast.parse(example.before)
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("torch.distributed.fsdp")
        for alias in node.names
        if alias.name not in FSDP2_NAMES
    }
    used = {
        node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in names
    }
    assert used <= lines


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_contract_is_looked_at_where_that_is_asked_for(rule: Rule, example: Example) -> None:
    report, _ = analyse(example.before)
    assert not CONTRACT_CODES & {finding.code for finding in report.findings}


def test_codes_and_names_are_distinct_and_well_formed() -> None:
    rules = all_rules()
    assert len({rule.code for rule in rules}) == len(rules)
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(re.fullmatch(r"FSDP\d{3}", rule.code) for rule in rules)
    assert all(rule.examples for rule in rules)
    assert rule_for("fsdp002") is not None
    assert rule_for("FSDP999") is None
