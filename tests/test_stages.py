"""The migration in two steps: the checkpoint code first, on models that are still FSDP1's, then the rest."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fsdp_migrate.codemods.registry import all_rules
from fsdp_migrate.codemods.rule import Example
from fsdp_migrate.engine import analyse
from fsdp_migrate.findings import Action
from fsdp_migrate.report import Report
from fsdp_migrate.settings import Options

from .bundled import CASES, FIXTURES

FIRST = Options(checkpoints_only=True)
EXAMPLES = [
    pytest.param(example, id=f"{rule.code} {example.title}")
    for rule in all_rules()
    for example in rule.examples
    if "state_dict" in example.before or "checkpoint" in example.before
]


def step(folder: Path, options: Options | None = None) -> Report:
    """One run that writes what it changes."""
    report = analyse(sorted(folder.rglob("*.py")), options)
    assert not report.errors, report.errors
    for change in report.changes:
        change.path.write_bytes(change.after)
    return report


def texts(folder: Path) -> dict[str, str]:
    return {file.relative_to(folder).as_posix(): file.read_text() for file in folder.rglob("*.py")}


def constructors(text: str) -> int:
    """How many calls of FSDP1's class there are, under its usual name."""
    return sum(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "FSDP"
        for node in ast.walk(ast.parse(text))
    )


def meaning(text: str) -> tuple[set[tuple[str | None, str, str | None]], list[str]]:
    """What a program imports at its top, in any order, and the rest of it."""
    imported, rest = set(), []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            imported |= {(module, alias.name, alias.asname) for alias in node.names}
        else:
            rest.append(ast.dump(node))
    return imported, rest


def check_both_ways(one: Path, two: Path) -> None:
    """Two equal folders come to the same programs, one at once and one in two steps."""
    before = texts(two)
    first = step(two, FIRST)
    between = texts(two)
    assert all(constructors(between[name]) == constructors(before[name]) for name in before)
    assert not any("fsdp-migrate: FSDP" in between[n].replace(before[n], "") for n in before)
    assert not step(two, FIRST).changes
    assert bool(first.changes) == any(f.action is not Action.MANUAL for f in first.findings)
    step(one)
    step(two)
    assert {name: meaning(text) for name, text in texts(two).items()} == {
        name: meaning(text) for name, text in texts(one).items()
    }


@pytest.mark.parametrize("example", EXAMPLES)
def test_two_steps_of_an_example_come_to_the_same_program(example: Example, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "example.py").write_text(example.before)
    check_both_ways(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("case", CASES)
def test_two_steps_of_a_fixture_come_to_the_same_program(case: str, tmp_path: Path) -> None:
    original = FIXTURES / case / "original"
    for name in ("one", "two"):
        for file in original.rglob("*.py"):
            target = tmp_path / name / file.relative_to(original)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    check_both_ways(tmp_path / "one", tmp_path / "two")
