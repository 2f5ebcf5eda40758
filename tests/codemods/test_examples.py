"""The examples on the rules' pages, and further programs: the tool must do what they say."""

import re
from collections import Counter
from collections.abc import Collection
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import fsdp_migrate.codemods
from fsdp_migrate.codemods.constructor.code import KEEPS
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import comments
from fsdp_migrate.codemods.registry import Codemod, all_rules, codemods, rule_for
from fsdp_migrate.codemods.rule import Rule
from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse as analyse_files
from fsdp_migrate.engine import analyse_source
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.program import Program
from fsdp_migrate.findings import Action, Severity
from fsdp_migrate.report import Report
from fsdp_migrate.requirements.check import add_requirements
from fsdp_migrate.requirements.places import kind_of
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

from .pages import MORE, Example, examples_of, more_examples

ALSO, QUIET = more_examples(), more_examples(MORE / "quiet")
IMPORT = "FSDP001"
SPEAKING = [
    pytest.param(rule, example, id=f"{rule.code} {example.title}")
    for rule in all_rules()
    for example in (*examples_of(rule), *ALSO.get(rule.code, ()))
]
SILENT = [
    pytest.param(rule, example, id=f"{rule.code} {example.title}")
    for rule in all_rules()
    for example in QUIET.get(rule.code, ())
]
EXAMPLES = [*SPEAKING, *SILENT]


@cache
def analyse(text: str, form: str = "auto", name: str = "example.py") -> tuple[Report, str]:
    if kind_of(f"/{name}") is not None:
        return of_requirements(text, form, name)
    source = Source(Path("/nowhere") / name, name, text.encode())
    report = analyse_source(source, Options(form))
    assert not report.errors, report.errors
    return report, report.changes[0].after.decode() if report.changes else text


def of_requirements(text: str, form: str, name: str) -> tuple[Report, str]:
    """What is done with a file that declares what a program of FSDP1 needs."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_text(text)
        program = Path(folder) / "train.py"
        program.write_text(
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(model)\n"
        )
        found = discover([Path(folder)])
        report = analyse_files(found, Options(form))
        add_requirements(report, found, Options(form))
        after = {change.path: change.after.decode() for change in report.changes}
        report.findings = [finding for finding in report.findings if finding.path == str(file)]
        return report, after.get(file, text)


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_example_becomes_what_it_says(rule: Rule, example: Example) -> None:
    _, after = analyse(example.before, example.form, example.file)
    assert after == (example.before if example.after is None else example.after)


def _severities_in(message: str) -> Collection[Severity]:
    """The severities that fit the words of a message."""
    if re.match(r"(This )?(\w+ )?[Rr]aises\b", message):
        return [Severity.RAISES]
    if "silently" in message or "without an error" in message:
        return [Severity.SILENT]
    return [*Severity]


@pytest.mark.parametrize(("rule", "example"), SPEAKING)
def test_rule_speaks_of_its_example(rule: Rule, example: Example) -> None:
    report, _ = analyse(example.before, example.form, example.file)
    own = [finding for finding in report.findings if finding.code == rule.code]
    assert own
    for finding in report.findings:
        if finding.action is Action.MANUAL:
            assert finding.severity in _severities_in(finding.message), finding
    assert any(example.message in f"{finding.construct} {finding.message}" for finding in own)


@pytest.mark.parametrize(("rule", "example"), SILENT)
def test_rule_has_nothing_to_say_of_others(rule: Rule, example: Example) -> None:
    report, _ = analyse(example.before, example.form, example.file)
    assert rule.code not in {finding.code for finding in report.findings}


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_every_line_that_changes_has_a_finding(rule: Rule, example: Example) -> None:
    every_line_that_changes_has_a_finding(example.before, example.form, example.file)


def every_line_that_changes_has_a_finding(before: str, *how: str) -> None:
    report, after = analyse(before, *how)
    spoken = {line for f in report.findings for line in range(f.line, f.end_line + 1)}
    kept = set(after.splitlines())
    lines = enumerate(before.splitlines(), 1)
    changed = {n for n, line in lines if line.strip() not in ("", KEEPS) and line not in kept}
    assert changed <= spoken


@pytest.mark.parametrize("form", ["auto", "bridge", "torch"])
@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_a_second_run_changes_nothing_and_loses_no_comment(
    rule: Rule, example: Example, form: str
) -> None:
    _, after = analyse(example.before, form, example.file)
    assert analyse(after, form, example.file)[1] == after
    if example.file.endswith(".py"):
        lost = Counter(comments(example.before)) - Counter(comments(after))
        assert {*lost} <= {KEEPS}  # which the tool has written itself


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_the_same_is_said_of_a_swapped_example(rule: Rule, example: Example) -> None:
    if kind_of(f"/{example.file}") is not None:
        pytest.skip("it is raised in every form")
    _, swapped = analyse(example.before, "bridge", example.file)
    codes = {
        finding.code for finding in analyse(example.before, example.form, example.file)[0].findings
    }
    again = {finding.code for finding in analyse(swapped, example.form, example.file)[0].findings}
    assert again | {IMPORT} == codes | {IMPORT}


def test_codes_and_names_are_distinct_and_well_formed() -> None:
    rules = all_rules()
    assert len({rule.code for rule in rules}) == len(rules)
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(re.fullmatch(r"FSDP\d{3}", rule.code) for rule in rules)
    assert {*ALSO, *QUIET} <= {rule.code for rule in rules}
    assert rule_for("fsdp002") is not None
    assert rule_for("FSDP999") is None


def _programs() -> list[str]:
    """The code of all examples and bundled programs."""
    fixtures = Path(__file__).parents[2] / "fixtures"
    texts = {file.read_text("utf-8") for file in fixtures.rglob("*.py")}
    examples = (parameter.values[1] for parameter in EXAMPLES)
    texts |= {e.before for e in examples if e.file.endswith(".py")}
    return sorted(texts)


@cache
def _context(text: str) -> Context:
    file = File(Path("/nowhere/example.py"), "example.py", text)
    return Context(file, Program([file]))


WITH_WORDS = [codemod for codemod in codemods() if codemod.words]


@pytest.mark.parametrize("codemod", WITH_WORDS, ids=[codemod.name for codemod in WITH_WORDS])
def test_a_codemod_finds_nothing_in_a_file_without_its_words(codemod: Codemod) -> None:
    others = []
    for text in _programs():
        context = _context(text)
        if not codemod.may_find(text, {*context.references.values()}, context.form):
            others.append(context)
    assert others
    assert [found.message for context in others for found in codemod.find(context)] == []


def test_each_module_with_a_search_registers_it() -> None:
    folder = Path(fsdp_migrate.codemods.__path__[0])
    search = re.compile(r"^def find\(context: Context\) -> Iterator\[Found\]", re.MULTILINE)
    searches = {
        ".".join(file.relative_to(folder).with_suffix("").parts)
        for file in folder.rglob("*.py")
        if search.search(file.read_text("utf-8"))
    }
    assert searches == {codemod.name for codemod in codemods()}
