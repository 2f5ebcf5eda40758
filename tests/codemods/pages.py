"""The examples of the rules: those of their pages in docs/rules, and those of `more_examples`, which look the same."""

import re
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.codemods.rule import Rule

MORE = Path(__file__).parent / "more_examples"
_EXAMPLE = re.compile(
    r"(?:With `--form (?P<form>\w+)`:\n\n)?(?:In `(?P<file>[^`]+)`:\n\n)?```(?P<kind>\w+)\n(?P<code>.*?)^```\n"
    r"(?:\n(?P<same>Stays as it is\.)? ?(?:The finding says: \*(?P<message>.*)\*\.)?\n)?",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Example:
    """A program before and after, or with its finding.

    Attributes:
        title: what the example shows, in a few words.
        before: a whole module.
        after: the module afterwards; None if it stays as it is.
        message: a part of what a finding of the rule must say.
        file: what the module is called; a configuration, by its ending.
        form: the `--form` that it is shown with.
    """

    title: str
    before: str
    after: str | None = None
    message: str = ""
    file: str = "example.py"
    form: str = "auto"


def examples_of(rule: Rule) -> list[Example]:
    """The examples on the page of a rule."""
    return examples_on(rule.page)


def table_of(rule: Rule) -> dict[str, str]:
    """The tables of a page: what is said of each name in the first column."""
    rows = re.findall(r"(?m)^\| (`.*?`) \| (.*) \|$", rule.page)
    return {name.strip("`"): text for names, text in rows for name in names.split(", ")}


def more_examples(folder: Path = MORE) -> dict[str, list[Example]]:
    """Programs beside the examples of the pages, by the code of their rule; in those of `quiet` it has nothing to say."""
    return {path.stem: examples_on(path.read_text("utf-8")) for path in sorted(folder.glob("*.md"))}


def examples_on(page: str) -> list[Example]:
    """The examples on a page: each begins with a heading of its own, on a rule's page below the heading "Examples"."""
    _, is_rule, examples = page.partition("\n## Examples\n")
    sections = f"\n{examples}".split("\n### ") if is_rule else page.split("\n## ")
    return list(map(_example, sections[1:]))


def _example(section: str) -> Example:
    title, _, text = section.partition("\n\n")
    found = _EXAMPLE.fullmatch(text.rstrip("\n") + "\n")
    assert found is not None, section
    before = after = found["code"]
    if found["kind"] == "diff":
        lines = found["code"].splitlines(keepends=True)
        before, after = (
            "".join(line[1:] for line in lines if line[0] in f" {sign}") for sign in "-+"
        )
    file = found["file"] or "example.py"
    after = None if found["same"] else after
    return Example(title, before, after, found["message"] or "", file, found["form"] or "auto")
