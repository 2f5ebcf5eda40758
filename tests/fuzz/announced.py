"""What announces that a migrated program does not do what the original does: what its findings say, and where they are."""

import re
from difflib import SequenceMatcher
from itertools import chain

from fsdp_migrate.findings import Action, Finding, Severity

from .switches import report_of

# A constructor that is by hand keeps FSDP1's model, whose uses are FSDP2's: it announces what they raise.
_CONSTRUCTOR = "FSDP002"
# What the runtime says in place, and the finding in torch's form that speaks of the same.
_ALSO_IN_TORCHS_FORM = {
    "FSDP213": ("FSDP003", "This forward records gradients"),
    "FSDP321": ("FSDP006", "until the next backward"),
}
# A finding that stands where a dictionary of arguments is, and what it says raises below.
_OF_DICTIONARIES = {"FSDP107": "mesh_dim_names"}
_FRAME = re.compile(r'File "<program>", line (\d+)')


def by_hand(source: str, form: str, errors: list[str]) -> list[str]:
    """The codes of what findings leave to the user: where a migrated program raises, those at a line of the traceback.

    Else those of what changes numbers or output. FSDP302 is among them: it says that FSDP1's ranks clipped by their own norms.
    """
    report = report_of(source, form)
    findings = [f for f in report.findings if f.action is Action.MANUAL or f.code == "FSDP302"]
    if errors:
        lines = _lines_before(source, report.changes[0].after.decode(), errors)
        return sorted(
            {
                f.code
                for f in findings
                if f.code == _CONSTRUCTOR
                or not lines.isdisjoint(_lines_of(f))
                or _OF_DICTIONARIES.get(f.code, "no error") in errors[0]
            }
        )
    return sorted({f.code for f in findings if f.severity is not Severity.RAISES})


def said_of_the_same(source: str, codes: set[str]) -> list[str]:
    """The findings in torch's form about what the runtime said in place; none if one of the codes has none."""
    findings = report_of(source, "torch").findings
    known = [_ALSO_IN_TORCHS_FORM.get(code, ("", "")) for code in sorted(codes)]
    if any(
        all(f.code != code or words not in f.message for f in findings) for code, words in known
    ):
        return []
    return [f"{code} as the runtime says" for code, _ in known]


def refused(source: str, form: str, errors: list[str], in_place: list[str]) -> list[str]:
    """What the runtime says where it refuses a model in place, and in torch's form the assumption that is about the same.

    Args:
        errors: those of the form.
        in_place: those of the form auto.
    """
    said = [error.strip().splitlines()[-1] for error in in_place if _is_refusal(error)]
    if not errors or not said:
        return []
    if form != "torch":
        return sorted({text.partition(";")[0] for text in said})
    kind = next((word for word in ("BatchNorm",) if word in said[0]), None)
    findings = report_of(source, form).findings
    assumed = (f for f in findings if f.code == "FSDP003" and kind and kind in f.message)
    return sorted({f"{f.code} about {kind}" for f in assumed})


def _is_refusal(error: str) -> bool:
    """Whether the runtime raised an error itself."""
    frames = re.findall(r'File "([^"]+)"', error)
    return bool(frames) and "/fsdp_migrate/runtime/" in frames[-1]


def _lines_of(finding: Finding) -> range:
    return range(finding.line, finding.end_line + 1)


def _lines_before(before: str, after: str, errors: list[str]) -> set[int]:
    """The lines of the original from which those came that tracebacks name."""
    raised = {int(line) for line in chain.from_iterable(map(_FRAME.findall, errors))}
    matcher = SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    found: set[int] = set()
    for tag, start, end, first, last in matcher.get_opcodes():
        for line in raised & {*range(first + 1, last + 1)}:
            same = {line - first + start}
            found |= same if tag == "equal" else {*range(start + 1, end + 1)}
    return found
