"""How far the tool reaches: ``python benchmarks/reach.py CORPUS``, where each folder of CORPUS is a repository.

Prints a row a repository: constructor calls by form, findings by action, files that change, public FSDP1 names that a
migrated file still imports from torch, and findings that are known to be false alarms. Below the table, each constructor call
that stays on the bridge with all its reasons. With ``--check FILE`` the row of totals is compared with the first one in FILE,
a page that this program printed before: it may not get worse.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fsdp_migrate.codemods.constructor import construction
from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse
from fsdp_migrate.facts.names import TORCH, fsdp1_name
from fsdp_migrate.report import Report
from fsdp_migrate.settings import Options

CONSTRUCTOR = construction.CONSTRUCTOR.code
# How findings name constructor calls: the others of this code are about assignments that go with a call.
CALLS = {
    construction.DIRECT,
    construction.SUBCLASS,
    construction.PARTIAL,
    construction.ENABLE_WRAP,
    construction.WRAP,
}
# Findings by hand that somebody read and found to be wrong: repository, file and code, one a line.
FALSE_ALARMS = Path(__file__).parent / "false_alarms.txt"
COLUMNS = (
    "plain",
    "bridge",
    "by hand",
    "rewrite",
    "runtime",
    "manual",
    "manual %",
    "files",
    "changed",
    "left on torch",
    "errors",
    "false alarms",
)
# More of these is worse, fewer of `plain` is.
WORSE_UP = ("manual %", "left on torch", "errors", "false alarms")


def measure(
    report: Report, repository: Path, false_alarms: set[tuple[str, str, str]]
) -> Counter[str]:
    """The numbers of one repository."""
    numbers: Counter[str] = Counter()
    forms = {"rewrite": "plain", "runtime": "bridge", "manual": "by hand"}
    for finding in report.findings:
        numbers[finding.action.value] += 1
        if finding.code == CONSTRUCTOR and finding.construct in CALLS:
            numbers[forms[finding.action.value]] += 1
        path = finding.path.partition(f"{repository.name}/")[2]
        numbers["false alarms"] += (repository.name, path, finding.code) in false_alarms
    numbers["files"] = len({finding.path for finding in report.findings})
    numbers["changed"] = len(report.changes)
    numbers["left on torch"] = sum(1 for _ in left_on_torch(report))
    numbers["errors"] = len(report.errors)
    return numbers


def staying(report: Report, repository: Path) -> Iterator[str]:
    """The constructor calls that stay on the bridge, a line each, with their reasons."""
    for finding in report.findings:
        stays = finding.action.value != "rewrite" and finding.construct in CALLS
        if finding.code == CONSTRUCTOR and stays:
            path = finding.path.partition(f"{repository.name}/")[2]
            reason = finding.message.removeprefix("stays on the bridge: ")
            reason = reason.replace(finding.path, path).replace("|", "\\|")
            yield f"- {repository.name}/{path}:{finding.line}, `{finding.construct}`: {reason}"


def left_on_torch(report: Report) -> Iterator[str]:
    """The public FSDP1 names that the files import from torch after the migration."""
    for change in (each for each in report.changes if each.path.suffix == ".py"):
        for node in ast.walk(ast.parse(change.after)):
            if isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    dotted = f"{node.module}.{alias.name}"
                    if dotted.startswith(TORCH) and fsdp1_name(dotted):
                        yield f"{change.path}:{node.lineno} {dotted}"


def row(name: str, numbers: Counter[str]) -> str:
    """One line of the table."""
    total = sum(numbers[action] for action in ("rewrite", "runtime", "manual"))
    share = 100 * numbers["manual"] / total if total else 0.0
    cells = [f"{share:.1f}" if c == "manual %" else str(numbers[c]) for c in COLUMNS]
    return f"| {name} | {' | '.join(cells)} |"


def totals_of(page: str) -> dict[str, float]:
    """The row of totals of a page that this program printed."""
    line = next(line for line in page.splitlines() if line.startswith("| total |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
    return dict(zip(COLUMNS, map(float, cells), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--form", choices=("auto", "bridge", "torch"), default="auto")
    parser.add_argument("--check", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    lines = FALSE_ALARMS.read_text("utf-8").splitlines() if FALSE_ALARMS.exists() else []
    known = {tuple(line.split()[:3]) for line in lines if line and not line.startswith("#")}
    page = [f"| repository | {' | '.join(COLUMNS)} |", f"|---|{'---:|' * len(COLUMNS)}"]
    total: Counter[str] = Counter()
    stay: list[str] = []
    for repository in sorted(path for path in arguments.corpus.iterdir() if path.is_dir()):
        report = analyse(discover([repository], root=repository), Options(arguments.form))
        numbers = measure(report, repository, known)  # type: ignore[arg-type]
        stay += staying(report, repository)
        total += numbers
        page.append(row(repository.name, numbers))
    page.append(row("total", total))
    print("\n".join([*page, "", *stay]))
    if arguments.check is None:
        return 0
    before, now = totals_of(arguments.check.read_text("utf-8")), totals_of("\n".join(page))
    worse = [c for c in WORSE_UP if now[c] > before[c]] + ["plain"] * (
        now["plain"] < before["plain"]
    )
    for column in worse:
        print(f"worse: {column}: {before[column]:g} before, {now[column]:g} now", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
