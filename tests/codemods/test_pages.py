"""Each rule has a page in docs/rules, which says what the rule says of itself."""

from __future__ import annotations

from pathlib import Path

from fsdp_migrate.codemods.registry import all_rules

from .pages import examples_of

DOCS = Path(__file__).parents[2] / "docs" / "rules"


def _sentence(summary: str) -> str:
    is_code = bool(set("_.(") & set(summary.split()[0]))  # `param_init_fn` keeps its case
    return (summary if is_code else summary[:1].upper() + summary[1:]) + "."


def test_every_rule_has_a_page_with_examples() -> None:
    assert {file.stem for file in DOCS.glob("FSDP*.md")} == {rule.code for rule in all_rules()}
    for rule in all_rules():
        title = f"# {rule.code} {rule.name}\n\n{_sentence(rule.summary)}\n\n"
        assert rule.page.startswith(title)
        assert examples_of(rule)
