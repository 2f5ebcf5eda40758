"""Each rule has a page in docs/rules, which says what the rule says of itself."""

import re
from pathlib import Path

from fsdp_migrate.codemods.assumptions import table as of_assumptions
from fsdp_migrate.codemods.by_hand import environment, private_attributes, private_modules
from fsdp_migrate.codemods.constructor.construction import ASSUMPTION
from fsdp_migrate.codemods.registry import all_rules

from .pages import examples_of, table_of

HEADINGS = ["What it does", "Why", "Is it safe?", "Examples"]
DOCS = Path(__file__).parents[2] / "docs" / "rules"


def test_every_rule_has_a_page_with_examples() -> None:
    assert {file.stem for file in DOCS.glob("FSDP*.md")} == {rule.code for rule in all_rules()}
    for rule in all_rules():
        assert rule.summary.endswith(".")
        assert rule.page.startswith(f"# {rule.code} {rule.name}\n\n{rule.summary}\n\n")
        headings = re.findall(r"(?m)^## (.*)$", rule.page)
        assert [each for each in headings if each != "References"] == HEADINGS, rule.code
        assert examples_of(rule)


def test_the_page_of_assumptions_shows_their_rows() -> None:
    """Each row of the two tables is what a finding says."""
    rows = [line for line in ASSUMPTION.page.splitlines() if line.startswith("| ")]
    assumed = of_assumptions.ASSUMPTIONS
    for row, each in zip(rows[1 : 1 + len(assumed)], assumed, strict=True):
        switch = "none"
        if each.switch:
            switch = f"`{each.switch}`"
        assert row == f"| {each.severity.value} | {each.message()} | {switch} |"
    names = {**of_assumptions.INTERFACE, **of_assumptions.METHODS, **of_assumptions.STATE_DICTS}
    table = table_of(ASSUMPTION)
    assert {name: table[name] for name in names} == names


def test_other_pages_show_the_rows_of_their_rules() -> None:
    assert table_of(environment.RULE) == environment.VARIABLES
    assert table_of(private_modules.NAME) == private_modules.NAMES
    assert table_of(private_attributes.ATTRIBUTE) == private_attributes.ATTRIBUTES
