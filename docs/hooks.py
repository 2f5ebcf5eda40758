"""The list of rules on the site, from their pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text of a page; the page about all rules gets their table."""
    if page.file.src_uri != "rules/README.md":
        return markdown
    rows = ["| code | name | what is done |", "|---|---|---|"]
    for file in sorted(Path(page.file.abs_src_path).parent.glob("FSDP*.md")):
        title, _, summary = file.read_text("utf-8").split("\n")[:3]
        code, name = title.removeprefix("# ").split()
        rows.append(f"| [{code}]({code}.md) | {name} | {summary} |")
    return "\n".join([markdown, *rows])
