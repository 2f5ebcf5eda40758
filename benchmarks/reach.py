"""How far the tool reaches: ``python benchmarks/reach.py CORPUS``, where each folder of CORPUS is a repository.

For each form a table, a row a repository: what the constructor calls have become, state-dict contexts that are functions
now, or gone where none was needed, files that import this package, lines added and removed, all read from the code before
and after (benchmarks/written.py); then findings by action, files that change, errors, and findings that are known to be
false alarms. Below each table stands what is left, with the finding that says why.

With ``--check FILE`` the rows of totals are compared with those in FILE, a page
that this program printed before: none may get worse.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from written import Construct, Form, Written, constructors, contexts

from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse
from fsdp_migrate.findings import Action, Finding
from fsdp_migrate.report import Report
from fsdp_migrate.settings import Options

# Findings by hand that somebody read and found to be wrong: repository, file and code, one a line.
FALSE_ALARMS = Path(__file__).parent / "false_alarms.txt"
FORMS = ("auto", "torch", "bridge")
# The rules of constructors and of state-dict contexts: what they say of one comes first.
OWN = ("FSDP002", "FSDP331")
CALLS = tuple(form.value for form in Form)
ACTIONS = tuple(action.value for action in Action)
COLUMNS = (
    *CALLS,
    "functions",
    "need none",
    "contexts left",
    "import us",
    "added",
    "removed",
    *ACTIONS,
    "manual %",
    "changed",
    "errors",
    "false alarms",
)
# More of these is worse; fewer of those is.
WORSE_UP = ("by hand", "contexts left", "import us", "manual %", "errors", "false alarms")
WORSE_DOWN = (Form.TORCH.value, "functions")


class Repository:
    """One repository in one form: its numbers, and what is left of FSDP1 in it."""

    def __init__(self, folder: Path, form: str, false_alarms: set[tuple[str, ...]]) -> None:
        self.folder = folder
        self.numbers: Counter[str] = Counter()
        self.left: list[str] = []
        self.imports: list[str] = []
        report = analyse(discover([folder], root=folder), Options(form))
        self._count_findings(report, false_alarms)
        after = {change.path.resolve(): change.after for change in report.rewritten}
        for file in sorted(folder.rglob("*.py")):
            before = file.read_bytes()
            if b"fsdp" in before.lower():
                self._read(file, before, after.get(file.resolve(), before))
        for change in report.rewritten:
            if change.path.suffix != ".py":
                self._count_lines(text(change.before), text(change.after))

    def _count_findings(self, report: Report, false_alarms: set[tuple[str, ...]]) -> None:
        self._findings: dict[str, list[Finding]] = {}
        for finding in report.findings:
            path = finding.path.partition(f"{self.folder.name}/")[2]
            self._findings.setdefault(path, []).append(finding)
            self.numbers[finding.action.value] += 1
            alarm = (self.folder.name, path, finding.code)
            self.numbers["false alarms"] += alarm in false_alarms
        self.numbers["changed"] = len(report.rewritten)
        self.numbers["errors"] = len(report.errors)

    def _count_lines(self, before: str, after: str) -> None:
        """Adds what changed in a file that is no Python."""
        old, new = Counter(before.splitlines()), Counter(after.splitlines())
        self.numbers["added"] += (new - old).total()
        self.numbers["removed"] += (old - new).total()

    def _read(self, file: Path, before: bytes, after: bytes) -> None:
        """Adds what became of the constructs of one Python file."""
        path = file.relative_to(self.folder).as_posix()
        try:
            written = Written(text(before), text(after))
        except SyntaxError:
            return
        self.numbers["added"] += written.added
        self.numbers["removed"] += written.removed
        if names := written.after.imports_ours:
            self.numbers["import us"] += 1
            short = sorted(name.rpartition(".")[2] for name in names)
            self.imports.append(f"- {self.folder.name}/{path}: {', '.join(short)}")
        left = []
        for call in constructors(written.before):
            form = written.form_of(call)
            self.numbers[form.value] += 1
            if form is not Form.TORCH:
                left.append((call, form.value))
        for context in contexts(written.before):
            if written.is_taken_out(context):
                self.numbers["need none"] += 1
            elif written.uses_functions(context):
                self.numbers["functions"] += 1
            else:
                self.numbers["contexts left"] += 1
                left.append((context, "left"))
        for construct, form_of_it in sorted(left, key=lambda pair: pair[0].first):
            place = f"{self.folder.name}/{path}:{construct.first}"
            why = self._reason(path, construct)
            self.left.append(f"- {place}, `{construct.text}`, {form_of_it}: {why}")

    def _reason(self, path: str, construct: Construct) -> str:
        """What the findings on the first lines of a construct say: first its own, and those that are no rewrite."""
        head = range(construct.first, min(construct.last, construct.first + 15) + 1)
        found = [each for each in self._findings.get(path, ()) if each.line in head]
        found.sort(key=lambda each: (each.code not in OWN, each.action is Action.REWRITE))
        reasons = []
        for finding in found:
            message = finding.message.replace(f"{self.folder.parent}/", "").replace("|", "\\|")
            reasons.append(re.sub(r"\s+", " ", message))
        return "; ".join(list(dict.fromkeys(reasons))[:2]) or "no finding says why"


def text(source: bytes) -> str:
    """The text of a file; what cannot be read is replaced."""
    return source.decode("utf-8-sig", "replace")


def row(name: str, numbers: Counter[str]) -> str:
    """One line of the table."""
    total = sum(numbers[action] for action in ACTIONS)
    share = 100 * numbers[Action.MANUAL.value] / total if total else 0.0
    cells = [f"{share:.1f}" if c == "manual %" else str(numbers[c]) for c in COLUMNS]
    return f"| {name} | {' | '.join(cells)} |"


def page(corpus: Path, form: str, false_alarms: set[tuple[str, ...]]) -> Iterator[str]:
    """The table of one form, and what is left below it."""
    yield f"## `--form {form}`"
    yield ""
    yield f"| repository | {' | '.join(COLUMNS)} |"
    yield f"|---|{'---:|' * len(COLUMNS)}"
    total: Counter[str] = Counter()
    left: list[str] = []
    imports: list[str] = []
    folders = (path for path in corpus.iterdir() if path.is_dir() and path.name[0] != ".")
    for folder in sorted(folders):
        repository = Repository(folder, form, false_alarms)
        yield row(folder.name, repository.numbers)
        total += repository.numbers
        left += repository.left
        imports += repository.imports
    yield row("total", total)
    yield ""
    if form != "bridge":
        yield from under("What is left, and why:", left)
    if form == "torch":
        yield from under("Files that import this package, and what:", imports)


def under(title: str, lines: Iterable[str]) -> Iterator[str]:
    """A list under its title; nothing where it is empty."""
    lines = list(lines)
    if lines:
        yield from (title, "", *lines, "")


def totals(page: str) -> dict[str, dict[str, float]]:
    """The row of totals of each form, of a page that this program printed."""
    rows: dict[str, dict[str, float]] = {}
    form = ""
    for line in page.splitlines():
        if line.startswith("## `--form "):
            form = line.split("`")[1].removeprefix("--form ")
        elif line.startswith("| total |"):
            cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
            rows[form] = dict(zip(COLUMNS, map(float, cells), strict=True))
    return rows


def worse(before: dict[str, dict[str, float]], now: dict[str, dict[str, float]]) -> Iterator[str]:
    """What got worse between two pages, a line each."""
    for form in sorted(before.keys() & now.keys()):
        for column in (*WORSE_UP, *WORSE_DOWN):
            old, new = before[form][column], now[form][column]
            if new > old if column in WORSE_UP else new < old:
                yield f"worse: {form}: {column}: {old:g} before, {new:g} now"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--form", choices=FORMS, action="append")
    parser.add_argument("--check", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    lines = FALSE_ALARMS.read_text("utf-8").splitlines() if FALSE_ALARMS.exists() else []
    known = {tuple(line.split()[:3]) for line in lines if line and not line.startswith("#")}
    printed = []
    for form in arguments.form or FORMS:
        for line in page(arguments.corpus, form, known):
            print(line, flush=True)
            printed.append(line)
    if arguments.check is None:
        return 0
    before = totals(arguments.check.read_text("utf-8"))
    found = list(worse(before, totals("\n".join(printed))))
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
