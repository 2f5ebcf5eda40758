"""The report as the text of a pull request, for somebody who reviews the diff and has not run the tool."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from fsdp_migrate.findings import Action, Finding
from fsdp_migrate.report import Report
from fsdp_migrate.settings import DEFAULT_FORM
from fsdp_migrate.source import shown_path
from fsdp_migrate.views.ci import in_repository
from fsdp_migrate.views.markdown import code, escaped, folded, places
from fsdp_migrate.views.text import counted, summary

_FORMS = {
    "auto": (
        "FSDP1 (`FullyShardedDataParallel`) is replaced by FSDP2 (`fully_shard`). One line for each model, "
        "`with like_fsdp1(model):`, keeps what else FSDP1 did, so training is the same."
    ),
    "bridge": (
        "Imports of FSDP1 (`FullyShardedDataParallel`) now come from `fsdp_migrate.runtime`, and nothing else changes: "
        "the code keeps FSDP1's interface, on FSDP2's engine."
    ),
    "torch": (
        "FSDP1 (`FullyShardedDataParallel`) is replaced by FSDP2 (`fully_shard`), with torch alone. What else FSDP1 did "
        "is left out; training is the same if the assumptions below hold."
    ),
}
# Numbers that change because FSDP2 has whole parameters and no wrapper, by the rule that finds the line.
_CHANGES = {
    "FSDP302": (
        "Gradients are clipped by the global norm, which is larger. "
        "Under FSDP1 these calls clipped each rank by its local norm."
    ),
    "FSDP507": (
        "Shapes, counts and norms are those of whole parameters. Under FSDP1 each rank saw flat shards, so groups by "
        "`ndim` (weight decay), selections by name and printed counts change."
    ),
    "FSDP522": "Parameters are initialized with other random numbers.",
    "FSDP523": "Lists of modules no longer contain FSDP1's wrappers.",
}
# Checkpoints that FSDP2 does not read or write as FSDP1 did, by the rule that finds the line.
_FILES = ("FSDP334", "FSDP336", "FSDP337", "FSDP524")
_COMPATIBLE = (
    "Checkpoints: the names in state dicts are the same. Whole state dicts, and those of `torch.distributed.checkpoint`, "
    "load before and after this change; `fsdp-migrate checkpoint inspect` says it of a file."
)
# What a later change can remove: the rule that finds the line, a word of its message, and what it is.
_LATER = (
    (
        "FSDP006",
        "",
        "`reshard_after_forward=True` at the root, where no parameter is read after a forward without gradients",
    ),
    (
        "FSDP152",
        "`requires_grad`",
        "conditions on `requires_grad` by which trained parameters are units of their own",
    ),
    ("FSDP017", "", "names of FSDP1's options that the program's own configuration still uses"),
)


def render_review(report: Report, verified: Mapping[str, object] | None = None) -> str:
    """The text; `verified` is a result of `verify --json`."""
    names = {finding.path: in_repository(finding.path) for finding in report.findings}
    findings = [finding._replace(path=names[finding.path]) for finding in report.findings]
    return "\n".join(_lines(report, findings, verified))


def _lines(
    report: Report, findings: list[Finding], verified: Mapping[str, object] | None
) -> Iterator[str]:
    yield from ("## FSDP1 to FSDP2", "")
    if findings:
        release = ".".join(map(str, report.target))
        yield from (f"{_FORMS[report.form]} The program then needs torch {release} or newer.", "")
    yield from (escaped(summary(report)), "")
    for problem in sorted(report.errors):
        yield f"**Error:** {code(problem.path)}, line {problem.line}: {escaped(problem.message)}  "
    if not findings:
        return
    manual = [finding for finding in findings if finding.action is Action.MANUAL]
    yield from _replaced(findings, report.form)
    yield from _changes(_by_rule(manual))
    yield from _assumptions(findings)
    yield from _compatible(_by_rule(manual))
    yield from _shown(report.form, verified)
    yield from _later(findings, report.form)
    yield from folded("Needs you", manual, is_open=True)
    yield from _files(report, findings)


def _replaced(findings: Sequence[Finding], form: str) -> Iterator[str]:
    """A row for each rule: how often it has changed something, and an example."""
    rewritten = [f for f in findings if f.action is Action.REWRITE and not f.assumption]
    if rewritten:
        yield from ("### What is replaced", "", *_table(rewritten), "")
    served = [finding for finding in findings if finding.action is Action.RUNTIME]
    if served and form != "torch":
        yield from ("### What uses `fsdp_migrate.runtime`", "", *_table(served), "")


def _table(findings: Iterable[Finding]) -> Iterator[str]:
    yield from ("| places | rule | for example |", "|--:|---|---|")
    for rule, found in sorted(_by_rule(findings).items()):
        [(message, _)] = Counter([finding.message for finding in found]).most_common(1)
        example = next(finding for finding in found if finding.message == message)
        yield f"| {len(found)} | {rule} | {code(example.construct)}: {escaped(message)} |"


def _changes(manual: Mapping[str, Sequence[Finding]]) -> Iterator[str]:
    lines = [
        f"- {text} {places(manual[rule])}" for rule, text in _CHANGES.items() if rule in manual
    ]
    if lines:
        yield from ("### What changes on purpose", "", *lines, "")


def _assumptions(findings: Iterable[Finding]) -> Iterator[str]:
    """Each assumption once, with its places."""
    by_message = defaultdict(list)
    for finding in findings:
        if finding.assumption:
            by_message[finding.message].append(finding)
    if not by_message:
        return
    yield from ("### What is assumed", "")
    for message, found in by_message.items():
        yield f"- {escaped(message)} ({counted(len(found), 'place')}: {places(found)})"
    yield ""


def _compatible(manual: Mapping[str, Sequence[Finding]]) -> Iterator[str]:
    yield from ("### What remains compatible", "", f"- {_COMPATIBLE}")
    for rule in _FILES:
        if rule in manual:
            yield f"- Except: {escaped(manual[rule][0].message)} ({places(manual[rule])})"
    yield ""


def _shown(form: str, verified: Mapping[str, object] | None) -> Iterator[str]:
    """What `verify` showed, or how to run it."""
    yield from ("### What `fsdp-migrate verify` showed", "")
    if verified is None:
        if form == DEFAULT_FORM:
            chosen = ""
        else:
            chosen = f" --form {form}"
        command = f"fsdp-migrate verify SCRIPT{chosen} -- ARGUMENTS"
        yield f"Not run yet: `{command}` trains both programs and compares them."
    else:
        if verified["equal"]:
            mark = "✅"
        else:
            mark = "❌"
        yield f"{mark} {escaped(str(verified['line']))}"
        environment = verified.get("environment")
        started = None
        if isinstance(environment, dict):
            started = environment.get("command")
        if started:
            yield from ("", f"By {code(str(started))}")
    yield ""


def _later(findings: Iterable[Finding], form: str) -> Iterator[str]:
    """What a follow-up removes."""
    if form == "bridge":
        lines = ["- FSDP1's interface: `fsdp-migrate`, run again, writes `fully_shard`"]
    else:
        lines = list(_no_longer_needed(findings))
    if form == "auto":
        lines.insert(
            0,
            "- the lines with `like_fsdp1`, once `verify` says that the program no longer needs them: "
            "`fsdp-migrate --form torch`",
        )
    if lines:
        yield from ("### What a follow-up removes", "", *lines, "")


def _no_longer_needed(findings: Iterable[Finding]) -> Iterator[str]:
    done = _by_rule(finding for finding in findings if finding.action is not Action.MANUAL)
    for rule, word, text in _LATER:
        found = [finding for finding in done.get(rule, ()) if word in finding.message]
        if found:
            yield f"- {text}: {places(found)}"


def _files(report: Report, findings: Iterable[Finding]) -> Iterator[str]:
    """A row for each file."""
    changed = {in_repository(shown_path(change.path)) for change in report.changes}
    done = "would be rewritten"
    if report.wrote:
        done = "rewritten"
    yield from ("| file | rewritten | runtime | needs you | |", "|---|--:|--:|--:|---|")
    for path, group in groupby(sorted(findings), key=lambda finding: finding.path):
        counts = Counter([finding.action for finding in group])
        numbers = " | ".join(str(counts[action] or "") for action in Action)
        state = "unchanged"
        if path in changed:
            state = done
        yield f"| {code(path)} | {numbers} | {state} |"


def _by_rule(findings: Iterable[Finding]) -> dict[str, Sequence[Finding]]:
    by_rule = defaultdict(list)
    for finding in findings:
        by_rule[finding.code].append(finding)
    return dict(by_rule)
