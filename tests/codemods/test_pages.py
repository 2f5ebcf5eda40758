"""docs/rules says what the rules say."""

from __future__ import annotations

from pathlib import Path

from fsdp_migrate.codemods.registry import all_rules
from fsdp_migrate.views.pages import pages, write_pages

DOCS = Path(__file__).parents[2] / "docs" / "rules"


def test_the_pages_are_up_to_date() -> None:
    """If this fails: `fsdp-migrate rules --pages docs/rules`."""
    assert {file.name: file.read_text("utf-8") for file in DOCS.glob("*.md")} == pages(all_rules())


def test_pages_of_rules_that_are_gone_go(tmp_path: Path) -> None:
    (tmp_path / "FSDP999.md").write_text("old")
    (tmp_path / "notes.md").write_text("mine")
    write_pages(tmp_path, all_rules()[:2])
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"README.md", "notes.md", *(f"{rule.code}.md" for rule in all_rules()[:2])}
