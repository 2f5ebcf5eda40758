"""The table of FSDP1's constructs, `docs/coverage.md`: what becomes of each, and by which rule.

fsdp-migrate rules --coverage docs/coverage.md

The tool migrates a small program for every row, so the table says what the tool does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.engine import analyse_source
from fsdp_migrate.findings import Action, Finding
from fsdp_migrate.index.names import FSDP2_NAMES
from fsdp_migrate.source import Source

if TYPE_CHECKING:
    from fsdp_migrate.codemods.coverage import Row, Section

_CONSTRUCTOR = "FSDP002"
_IMPORT = "FSDP001"
_HARDEST_FIRST = [Action.MANUAL, Action.RUNTIME, Action.REWRITE]


@dataclass(frozen=True)
class Entry:
    """What the tool says of a row.

    Attributes:
        action: the hardest of the findings' actions; None if there is no finding.
        codes: the rules that speak of it. The constructor's own only where no rule of an argument does.
        message: what the finding that decides the action says.
        example: the code and the title of an example with the same construct and action; None if no rule has one.
        changes: a finding rewrites it, whatever else is left to be done by hand.
    """

    action: Action | None
    codes: tuple[str, ...]
    message: str
    example: tuple[str, str] | None
    changes: bool = False


@cache
def entry(section: Section, row: Row) -> Entry:
    """Migrates the program of a row, and says what became of the construct."""
    program, line = section.program(row)
    found = [f for f in _findings(program) if f.line >= line and f.code != _IMPORT]
    if not found:
        return Entry(None, (), "", None)
    action = min((finding.action for finding in found), key=_HARDEST_FIRST.index)
    own = [finding for finding in found if finding.code != _CONSTRUCTOR] or found
    decisive = next((f for f in (*own, *found) if f.action is action), found[0])
    examples = (_examples().get(_key(finding)) for finding in (decisive, *own))
    return Entry(
        action,
        tuple(dict.fromkeys(sorted(finding.code for finding in own))),
        decisive.message,
        next((example for example in examples if example), None),
        any(finding.action is not Action.MANUAL for finding in own),
    )


def coverage_page() -> str:
    """The whole page."""
    from fsdp_migrate.codemods.coverage import SECTIONS

    parts = [
        "# Coverage",
        "What becomes of every construct of FSDP1. The page is generated: the tool migrates a program for each row.",
        "- **rewrite**: plain PyTorch takes its place.\n"
        "- **runtime**: a call of `fsdp_migrate.runtime` takes its place.\n"
        "- **manual**: it stays, and the finding says what to do.\n"
        "- **same**: it means the same under FSDP2, so no rule speaks of it.\n"
        "- **missing**: the tool should see it and does not.",
        "The last column names an example of the rule with the very same construct. Every row is a test as well "
        "(`tests/codemods/test_coverage.py`).",
    ]
    for section in SECTIONS:
        parts += [f"## {section.title}", "\n".join(_table(section))]
    names = ", ".join(f"`{name}`" for name in sorted(FSDP2_NAMES))
    parts += ["## Names of FSDP2", f"They stay as they are: {names}."]
    return "\n\n".join(parts) + "\n"


def write_coverage(path: Path) -> None:
    """Writes the page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(coverage_page(), "utf-8")


def _table(section: Section) -> Iterator[str]:
    yield "| construct | action | rule | what becomes of it | example |"
    yield "|---|---|---|---|---|"
    for row in section.rows:
        said = entry(section, row)
        action = said.action.value if said.action else "missing" if row.missing else "same"
        codes = ", ".join(f"[{code}](rules/{code}.md)" for code in said.codes)
        message = said.message or row.missing or row.same
        example = f"{said.example[0]}: {said.example[1]}" if said.example else ""
        cells = (_code(row.code), action, codes, _cell(message), example)
        yield f"| {' | '.join(cells)} |"


def _code(code: str) -> str:
    """Code in a cell, a line break where the code has one."""
    return "<br>".join(f"`{_cell(line)}`" for line in code.splitlines() if line)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _findings(program: str) -> Sequence[Finding]:
    source = Source(Path("/nowhere/row.py"), "row.py", program.encode())
    report = analyse_source(source)
    if report.errors:
        raise ValueError(f"{report.errors[0].message}\n{program}")
    return report.findings


def _key(finding: Finding) -> tuple[str, Action, str]:
    return finding.code, finding.action, finding.construct


@cache
def _examples() -> dict[tuple[str, Action, str], tuple[str, str]]:
    """The first example that shows a construct, by rule, action and construct."""
    from fsdp_migrate.codemods.registry import all_rules

    shown: dict[tuple[str, Action, str], tuple[str, str]] = {}
    for rule in all_rules():
        for example in rule.examples:
            for finding in _findings(example.before):
                if finding.code == rule.code:
                    shown.setdefault(_key(finding), (rule.code, example.title))
    return shown
