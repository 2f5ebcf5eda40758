"""What the tool itself writes keeps the contract, but for what it says is left to be done by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.codemods.registry import CONTRACT, all_rules
from fsdp_migrate.engine import analyse, analyse_source
from fsdp_migrate.findings import Action
from fsdp_migrate.report import Report
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

FIXTURES = Path(__file__).parents[2] / "fixtures"
CODES = {rule.code for module in CONTRACT for rule in module.RULES}
EXAMPLES = [
    pytest.param(example.after or example.before, id=f"{rule.code} {example.title}")
    for rule in all_rules()
    if rule.code not in CODES
    for example in rule.examples
]
SINGLE_UNIT = "FSDP702"  # an FSDP1 model without a policy is one unit as well


def breaches(report: Report, text: str = "") -> list[str]:
    """The breaches on lines that the tool says nothing of, by a finding or by a comment above."""
    assert not report.errors
    lines = ["", *text.splitlines()]
    by_hand = {
        (finding.path, finding.line)
        for finding in report.findings
        if finding.action is Action.MANUAL and finding.code not in CODES
    }
    return [
        f"{finding.path}:{finding.line} {finding.code} {finding.message}"
        for finding in report.findings
        if finding.code in CODES
        and finding.code != SINGLE_UNIT
        and (finding.path, finding.line) not in by_hand
        and not (text and _is_marked(lines, finding.line))
    ]


def _is_marked(lines: list[str], line: int) -> bool:
    """Whether a comment stands above the statement of a line, which may begin a line further up."""
    return any("# fsdp-migrate:" in text for text in lines[max(line - 2, 0) : line])


@pytest.mark.parametrize("case", sorted(path.parent.name for path in FIXTURES.glob("*/case.toml")))
def test_bundled_program(case: str) -> None:
    files = sorted((FIXTURES / case / "migrated").rglob("*.py"))
    assert files
    assert not breaches(analyse(files, Options(fsdp2=True)))


@pytest.mark.parametrize("text", EXAMPLES)
def test_example_of_a_rule(text: str) -> None:
    source = Source(Path("/nowhere/example.py"), "example.py", text.encode())
    assert not breaches(analyse_source(source, Options(fsdp2=True)), text)


def test_what_is_left_by_hand_is_seen() -> None:
    """A line that the tool leaves, which would fail."""
    text = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(model)\n"
        "model.register_comm_hook(state, hook)\n"
    )
    source = Source(Path("/nowhere/example.py"), "example.py", text.encode())
    (change,) = analyse_source(source).changes
    left = Source(source.path, source.shown, change.after)
    report = analyse_source(left, Options(fsdp2=True))
    found = [f.construct for f in report.findings if f.code in CODES - {SINGLE_UNIT}]
    assert found == ["model.register_comm_hook"]
