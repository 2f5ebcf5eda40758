"""What the tool misses: ``python benchmarks/recall.py CORPUS``, where each folder of CORPUS is a repository.

tests/recall/rows holds lists that were made without the tool: ``REPOSITORY.csv`` has the lines that break or change when a
program moves to FSDP2 (or would, and the runtime keeps them), ``REPOSITORY.fine.csv`` lines that look alike and are fine.
Printed are the rows that no finding stands on with their causes, recall in all and by cause, and the precision of
findings by hand; one that no row knows is listed as not judged and counts on neither side. The exit status is 1 where
recall is below 0.95 or precision below 0.9.
"""

from __future__ import annotations

import argparse
import ast
import csv
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse
from fsdp_migrate.findings import Action, Finding
from fsdp_migrate.settings import Options

ROWS = Path(__file__).parent.parent / "tests" / "recall" / "rows"
# Findings by hand that somebody read and found to be wrong: repository, file and code, one a line.
FALSE_ALARMS = Path(__file__).parent / "false_alarms.txt"
# The effect of a line that torch's FSDP2 alone would change, and the runtime keeps as it was: it needs no finding.
KEPT = "kept"
RECALL, PRECISION = 0.95, 0.9


class Row(NamedTuple):
    """One line of a list."""

    path: str
    line: int
    effect: str
    cause: str
    what: str
    shown: str


_ALSO = re.compile(r"Also (?:at|on) lines? ([\d, ]+)\.")


@dataclass
class Result:
    """The numbers of all repositories."""

    rows: Counter[str] = field(default_factory=Counter)
    caught: Counter[str] = field(default_factory=Counter)
    right: int = 0
    wrong: int = 0
    not_judged: list[str] = field(default_factory=list)


def rows_of(file: Path) -> list[Row]:
    """The rows of one list; none where there is no such list."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return [Row(**{**each, "line": int(each["line"])}) for each in csv.DictReader(lines)]


def statements(file: Path) -> dict[int, int]:
    """From each line of a Python file to the first line of its innermost statement; of a compound one, of its head."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return {}
    first: dict[int, int] = {}
    for node in ast.walk(tree):  # parents before children
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            first |= dict.fromkeys(range(node.lineno, end + 1), node.lineno)
    return first


def lines_named(message: str) -> set[int]:
    """The other lines that a finding is about, where one speaks for all of a function."""
    named = _ALSO.search(message)
    return set() if named is None else {int(line) for line in named[1].split(",")}


class Findings:
    """The findings of one repository, and whether one stands on a row."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._first: dict[str, dict[int, int]] = {}
        report = analyse(discover([repository], root=repository), Options("auto"))
        self.by_path: dict[str, list[Finding]] = {}
        for finding in report.findings:
            path = finding.path.partition(f"{repository.name}/")[2]
            self.by_path.setdefault(path, []).append(finding)

    def on(self, row: Row, path: str, finding: Finding) -> bool:
        """Whether a finding of a file stands on the row's line, in the statement that holds it, or names the line."""
        if path != row.path:
            return False
        if row.line in lines_named(finding.message):
            return True
        if path not in self._first:
            self._first[path] = statements(self._repository / path)
        first = self._first[path]
        holding = first.get(row.line, row.line)
        return finding.line <= row.line <= finding.end_line or first.get(finding.line) == holding


def measure(repository: Path, result: Result, alarms: set[tuple[str, ...]]) -> None:
    """Adds one repository to the numbers; prints what was missed, and the false alarms."""
    name = repository.name
    known, fine = rows_of(ROWS / f"{name}.csv"), rows_of(ROWS / f"{name}.fine.csv")
    true = [row for row in known if row.effect != KEPT]
    fine += [row for row in known if row.effect == KEPT]
    findings = Findings(repository)
    for row in true:
        result.rows[row.cause] += 1
        if any(findings.on(row, row.path, each) for each in findings.by_path.get(row.path, ())):
            result.caught[row.cause] += 1
        else:
            print(f"missed: {row.cause}: {name}/{row.path}:{row.line} ({row.effect})")
    by_hand = [
        (path, finding)
        for path, each in findings.by_path.items()
        for finding in each
        if finding.action is Action.MANUAL
    ]
    for path, finding in by_hand:
        place = f"{name}/{path}:{finding.line}: {finding.code}"
        if any(findings.on(row, path, finding) for row in true):
            result.right += 1
        elif (name, path, finding.code) in alarms or any(
            findings.on(row, path, finding) for row in fine
        ):
            result.wrong += 1
            print(f"false alarm: {place}")
        else:
            result.not_judged.append(f"{place} {finding.message}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    corpus: Path = parser.parse_args().corpus
    lists = [file.stem for file in ROWS.glob("*.csv") if not file.stem.startswith("revisions")]
    names = sorted(stem for stem in lists if not stem.endswith(".fine"))
    if absent := [name for name in names if not (corpus / name).is_dir()]:
        sys.exit(f"{corpus} has no folder for {', '.join(absent)}")
    lines = FALSE_ALARMS.read_text("utf-8").splitlines() if FALSE_ALARMS.exists() else []
    alarms = {tuple(line.split()[:3]) for line in lines if line and not line.startswith("#")}
    result = Result()
    for name in names:
        measure(corpus / name, result, alarms)
    for line in result.not_judged:
        print(f"not judged: {line}")
    for cause, number in result.rows.most_common():
        print(f"{cause}: {result.caught[cause]} of {number}")
    caught, total = result.caught.total(), result.rows.total()
    recall, judged = caught / total, result.right + result.wrong
    precision = result.right / judged if judged else 1.0
    print(f"recall {recall:.3f}: {caught} of {total} rows")
    print(
        f"precision by hand {precision:.3f}: {result.right} right, {result.wrong} wrong, "
        f"{len(result.not_judged)} not judged"
    )
    return int(recall < RECALL or precision < PRECISION)


if __name__ == "__main__":
    sys.exit(main())
