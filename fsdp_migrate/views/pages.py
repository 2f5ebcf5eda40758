"""The rules as pages of `docs/rules`, one a rule and an index.

fsdp-migrate rules --pages docs/rules
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsdp_migrate.codemods.rule import Example, Rule


_LANGUAGES = {"json": "json", "py": "python", "sh": "bash", "yaml": "yaml"}


def pages(rules: Sequence[Rule]) -> dict[str, str]:
    """File name to content, `README.md` among them."""
    ordered = sorted(rules, key=lambda rule: rule.code)
    index = [
        "# Rules",
        "",
        "What the tool does with each construct of FSDP1. What no rule speaks of works on the bridge as it is.",
        "The pages are generated from the rules, whose examples are run as tests.",
        "",
        "| code | name | what is done |",
        "|---|---|---|",
        *(
            f"| [{rule.code}]({rule.code}.md) | {rule.name} | {_cell(rule.summary)} |"
            for rule in ordered
        ),
        "",
    ]
    return {"README.md": "\n".join(index), **{f"{rule.code}.md": _page(rule) for rule in ordered}}


def write_pages(folder: Path, rules: Sequence[Rule]) -> None:
    """Writes the pages into a folder and removes those of rules that no longer exist."""
    folder.mkdir(parents=True, exist_ok=True)
    made = pages(rules)
    for old in folder.glob("FSDP*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, "utf-8")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _sentence(summary: str) -> str:
    is_code = bool(set("_.(") & set(summary.split()[0]))  # `param_init_fn` keeps its case
    return (summary if is_code else summary[:1].upper() + summary[1:]) + "."


def _page(rule: Rule) -> str:
    parts = [
        f"# {rule.code} {rule.name}",
        _sentence(rule.summary),
        rule.explanation,
    ]
    parts += [_example(example) for example in rule.examples]
    return "\n\n".join(parts) + "\n"


def _example(example: Example) -> str:
    title = f"## {example.title}"
    if example.after is None:
        said = (
            f"\n\nStays as it is. The finding says: *{example.message}*." if example.message else ""
        )
        return f"{title}\n\n```{_LANGUAGES[example.file.rpartition('.')[2]]}\n{example.before}```{said}"
    before, after = (text.splitlines(keepends=True) for text in (example.before, example.after))
    changes = "".join(list(difflib.unified_diff(before, after, n=100))[3:])
    return f"{title}\n\n```diff\n{changes}```"
