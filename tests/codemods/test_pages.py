"""Each rule has a page in docs/rules, which says what the rule says of itself."""

from pathlib import Path

from fsdp_migrate.codemods.registry import all_rules

from .pages import examples_of

DOCS = Path(__file__).parents[2] / "docs" / "rules"


def test_every_rule_has_a_page_with_examples() -> None:
    assert {file.stem for file in DOCS.glob("FSDP*.md")} == {rule.code for rule in all_rules()}
    for rule in all_rules():
        assert rule.summary.endswith(".")
        assert rule.page.startswith(f"# {rule.code} {rule.name}\n\n{rule.summary}\n\n")
        assert examples_of(rule)
