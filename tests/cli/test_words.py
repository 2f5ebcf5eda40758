"""What users read: whole sentences in the field's terms, and no path or module that does not exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdp_migrate.findings import Action

from ..codemods.test_examples import EXAMPLES, analyse

ROOT = Path(__file__).parents[2]
# What a PyTorch user would have to read twice. A rule's own name may contain one of them.
WORDS = re.compile(
    r"\b(made plain|torch's words|by hand|a person|the bridge|served by|in silence|unless nothing|unless no"
    r"|stays?|goes|stands?|besides?|the runtime)\b(?!-)"
)
# What begins with a verb alone, as in "Is false": a reader has to guess what is false.
NO_SUBJECT = re.compile(r"(?!(This|Units|Files)\b)(Now )?[A-Z]?[a-z]*s\b|(Never|No longer)\b")
# Pages of results that nobody's program writes.
WRITTEN = ("cost", "fuzz", "gpu", "mutation", "security", "speed")
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs/rules").glob("*.md"),
        ROOT / "docs/gallery/README.md",
        *(ROOT / f"docs/results/{name}.md" for name in WRITTEN),
    ]
)
# Folders of the repository that a page may name, and how a path in one of them looks.
FOLDERS = "benchmarks|codemods|docs|fixtures|fsdp_migrate|runtime|tests"
PATHS = re.compile(rf"(?<![\w/.-])(?:{FOLDERS})/[\w./-]*\w")
MODULES = re.compile(r"\bfsdp_migrate(?:\.[a-z]\w*)+")


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page without code, quotations and the words that its examples have by convention."""
    text = re.sub(
        r"```.*?```",
        lambda block: "\n" * block[0].count("\n"),
        page.read_text("utf-8"),
        flags=re.DOTALL,
    )
    for number, line in enumerate(text.splitlines(), 1):
        yield (
            number,
            re.sub(r"`[^`]*`|\"[^\"]*\"|^# .*|Stays as it is\.|The finding says: .*", "", line),
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_words_of_the_house(page: Path) -> None:
    found = [f"{page.name}:{n}: {w[0]}" for n, line in prose(page) for w in WORDS.finditer(line)]
    assert found == []


@pytest.mark.parametrize("form", ["auto", "bridge", "torch"])
def test_findings_are_sentences_without_words_of_the_house(form: str) -> None:
    findings = [
        finding
        for example in (parameter.values[1] for parameter in EXAMPLES)
        for finding in analyse(example.before, form, example.file)[0].findings
    ]
    messages = {finding.message for finding in findings}
    assert len(messages) > 100
    manual = {finding.message for finding in findings if finding.action is Action.MANUAL}
    assert [message for message in manual if NO_SUBJECT.match(message)] == []
    if form == "torch":
        assert [message for message in messages if "fsdp_migrate" in message] == []
    for message in messages:
        assert re.match(r"[A-Z`]", message), message
        assert re.search(r"[.)]$", message), message
        assert not WORDS.search(re.sub(r"`[^`]*`", "", message)), message


def test_other_texts_of_the_program_have_no_words_of_the_house() -> None:
    """Strings of three words and more that are no documentation: errors, warnings, help, views, verdicts."""
    found = []
    for folder in ("codemods", "fsdp_migrate", "runtime"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(file.read_text("utf-8"))
            documentation = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and node not in documentation:
                    text = re.sub(r"`[^`]*`", "", str(node.value))
                    if text.count(" ") >= 2 and WORDS.search(text):
                        found.append(f"{file.relative_to(ROOT)}:{node.lineno}: {text}")
    assert found == []


@pytest.mark.parametrize(
    "page",
    [*PAGES, ROOT / "fixtures/README.md", *sorted((ROOT / "docs/results").glob("*.md"))],
    ids=lambda page: page.name,
)
def test_paths_and_modules_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    missing = [path for path in PATHS.findall(text) if not (ROOT / path).exists()]
    if page.name == "codemod.md":  # which builds a rule of its own
        missing = [path for path in missing if not re.search("root_check|FSDP390", path)]
    for module in MODULES.findall(text):
        parts = re.sub(r"^fsdp_migrate\.(codemods|runtime)\b", r"\1", module).replace(
            "fsdp_migrate.", "fsdp_migrate/"
        )
        place = ROOT / parts.replace(".", "/")
        # The last name may be one that the module has.
        if not any(
            each.exists()
            for each in (
                place,
                place.with_suffix(".py"),
                place.parent.with_suffix(".py"),
                place.parent / "__init__.py",
            )
        ):
            missing.append(module)
    assert missing == []
