"""One file, from its facts to its findings and its new source. Each file is decided by itself; nothing waits for another."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fsdp_migrate.codemods.context import Context, shortened
from fsdp_migrate.codemods.edit.text import Refused, apply, comments, origins, overlap, spliced
from fsdp_migrate.codemods.libraries.rules import OF_SETTINGS
from fsdp_migrate.codemods.parameters import without_parameters
from fsdp_migrate.codemods.registry import find
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.codemods.same import Made, without_removed, without_repeats
from fsdp_migrate.codemods.stale import without_stale_comments
from fsdp_migrate.codemods.stale_words import stale_words
from fsdp_migrate.codemods.still_used import still_used
from fsdp_migrate.codemods.swap import Swap, swap
from fsdp_migrate.codemods.uses.both_classes import why_for_fsdp1
from fsdp_migrate.codemods.uses.guards import stays_fsdp1
from fsdp_migrate.codemods.without_use import unread_parameters, without_use
from fsdp_migrate.conflicts import is_written, undone, without_overlaps
from fsdp_migrate.facts.file import File, place_of
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.uncalled import why_uncalled
from fsdp_migrate.facts.unreached import why_not
from fsdp_migrate.findings import ASSUMPTION, Action, Finding, Problem, Severity
from fsdp_migrate.report import Change
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

_WORD = re.compile(r"\w+")
_REMARK = re.compile(r"#|\"{3}|'{3}")
_LATER = (
    "Not changed: a library shards the models, still with FSDP1, because the project requires a release without FSDP2. "
    "Raise that requirement, then run fsdp-migrate again."
)
_OF_LIBRARIES = "FSDP8"  # the codes of what is set for another library


@dataclass
class Outcome:
    """The findings and edits of one file.

    Attributes:
        of_torch: whether it imports or writes out an FSDP1 name of torch's, or sets FSDP1 for another library; None if it
            names no FSDP1 at all.
        after: the program as it is to be.
        sets_fsdp: whether it is a configuration by which Accelerate shards models, by either version of FSDP.
        is_too_old: whether it stays a configuration of FSDP1, because the project takes no release that reads version 2.
        passed: why it was passed over, where that is no error.
        imports_runtime: whether it imports the runtime, once it is migrated.
    """

    findings: list[Finding] = field(default_factory=list)
    errors: list[Problem] = field(default_factory=list)
    passed: list[Problem] = field(default_factory=list)
    change: Change | None = None
    of_torch: bool | None = None
    after: str = ""
    sets_fsdp: bool = False
    is_too_old: bool = False
    imports_runtime: bool = False


def migrate(file: File, source: Source, program: Program, options: Options) -> Outcome:
    """Decides one file.

    A file whose edits would lose something has its imports swapped and nothing else, but for torch's form; if even that
    fails, it stays as it is and the report names it.
    """
    outcome = Outcome()
    refusals = []
    forms = [options.form]
    if (
        options.form != "torch"
    ):  # which imports nothing of the runtime: there is no smaller step than none
        forms.append("bridge")
    for form in dict.fromkeys(forms):
        context = Context(
            file, program, form=form, writes=options.settles, target=options.target_torch, ask=find
        )
        try:
            work = _File(context, options)
            found, after, outcome.of_torch = work.run()
            outcome.imports_runtime = work.imports_runtime
            break
        except Exception as error:
            refusals.append(error)
    else:
        outcome.errors.append(Problem(file.shown, 0, f"left alone: {_reason(refusals[-1])}"))
        return outcome
    if refusals:
        message = f"only its imports changed: {_reason(refusals[0])}"
        outcome.errors.append(Problem(file.shown, 0, message))
    outcome.findings = [source.placed(_finding(file, source, each)) for each in found]
    if not options.only_checks:
        outcome.after = after
        try:
            data = source.encode(after)
        except ValueError as error:  # an encoding, or cells, that the new text does not fit
            outcome.errors.append(Problem(file.shown, 0, f"left alone: {error}"))
        else:
            if data != source.data:
                lines = origins(file.text, work.edits)
                outcome.change = Change(source.path, source.data, data, lines)
    return outcome


class _File:
    def __init__(self, context: Context, options: Options) -> None:
        self.context = context
        self.options = options
        self.imports_runtime = False
        self.edits: list[Edit] = []

    def run(self) -> tuple[list[Found], str, bool | None]:
        """What is found, the new text, and whether the file uses torch's FSDP1."""
        # A place may be a model's of the program, and one of Accelerate's.
        every = {(each.rule.code, each.node, each.message): each for each in find(self.context)}
        found = [self.unless_passed(each) for each in every.values()]
        program = self.context.program
        if self.context.in_place and program.is_too_old and program.once(stays_fsdp1):
            found = [_kept(each) for each in found]
        try:
            return self.written(found, each_alone=False)
        except Refused:
            return self.written(found, each_alone=True)

    def written(
        self, found: list[Found], *, each_alone: bool
    ) -> tuple[list[Found], str, bool | None]:
        """As `run`, of what was found.

        Args:
            each_alone: whether the edits of each finding are tried by themselves first, so that one which would lose a comment
                leaves the others.
        """
        every = found
        edits: list[Edit] = []
        if self.context.writes:
            found, edits = self.settled(found, each_alone=each_alone)
        applied = [each for each in found if self.is_on(each.rule, each.node)]
        removed = [node for each in applied for node in each.removed]
        needed = [need for each in applied for need in each.imports]
        after = ""
        if self.context.writes:
            after = spliced(self.context.file.text, edits)
            words = set(_WORD.findall(after))
            needed = [need for need in needed if _local_name(need) in words]
            if self.context.in_place and edits:
                found += without_use(self.context, after)
        found += list(still_used(self.context, found, removed))
        imports = swap(self.context, removed, needed, self.is_on, after)
        self.imports_runtime = imports.of_runtime
        of_imports: Sequence[Edit] = ()
        if self.context.writes:
            of_imports = imports.edits()
        if each_alone and overlap([*edits, *of_imports]):
            left = without_overlaps(every, of_imports)
            if left != every:
                return self.written(left, each_alone=True)
        self.edits = [*edits, *of_imports]
        shown = [each for each in found if self.is_on(each.rule, each.node)] + imports.found
        if self.context.in_place and self.context.silenced.comments:
            shown += self.unused()
        text = self.context.file.text
        if self.edits:
            text = apply(text, self.edits)
            if self.context.in_place and _REMARK.search(self.context.file.text):
                shown += self.stale(text)
                text = apply(self.context.file.text, self.edits)
        return shown, text, self.uses_torch(found, imports)

    def stale(self, text: str) -> Iterator[Found]:
        """What is found of comments and docstrings once the edits are known; adds edits of its own."""
        for each, own in stale_words(self.context, self.edits, text):
            if self.is_on(each.rule, each.node):
                self.edits += own
                yield each

    def settled(self, found: list[Found], *, each_alone: bool) -> tuple[list[Found], list[Edit]]:
        """What is found as it is reported once the edits are known, and the edits."""
        text = None
        if each_alone:
            text = self.context.file.text
        pairs = _settled(found, self.is_on, self.context.form, text)
        if self.context.in_place and any(own for _, own in pairs):
            pairs = without_repeats(self.context, pairs, self.is_on)
            after = spliced(self.context.file.text, [edit for _, own in pairs for edit in own])
            if unread := list(unread_parameters(self.context, after)):
                pairs = without_parameters(self.context, pairs, unread, self.is_on)
        if any(edit.text.strip() == "" for _, own in pairs for edit in own):
            pairs = without_stale_comments(self.context.file, pairs)
        return [each for each, _ in pairs], [edit for _, own in pairs for edit in own]

    def uses_torch(self, found: list[Found], imports: Swap) -> bool | None:
        """Whether the file uses torch's FSDP1: `Outcome.of_torch`."""
        if imports.of_torch or any(map(_changes_settings, found)):
            return True
        if self.context.references:
            return False
        return None

    def unless_passed(self, found: Found) -> Found:
        """A finding, which is not left to the user where nothing that it is about gets."""
        if found.action is Action.MANUAL:
            file = self.context.file
            why = why_not(file, found.node, self.context.target)
            if why:
                return found._replace(action=Action.RUNTIME, message=why)
            why = why_uncalled(self.context.program, file, found.node)
            if why:
                message = f"{why} If one does: {found.message}"
                return found._replace(action=Action.RUNTIME, message=message)
            why = why_for_fsdp1(self.context, found.node)
            if why:
                unchanged = found._replace(edits=None, imports=(), removed=())
                return unchanged._replace(action=Action.RUNTIME, message=why)
            return found
        return found

    def is_on(self, rule: Rule, node: ast.AST) -> bool:
        """Whether a rule is selected, and not silenced on a node's line."""
        return not self.context.silenced(rule, node) and self.options.takes(rule.code)

    def unused(self) -> Iterator[Found]:
        """The comments, and not words in a string, that silence nothing."""
        from fsdp_migrate.codemods.silenced import unused

        known = comments(self.context.file.text)
        for each in unused(self.context.silenced):
            if self.options.takes(each.rule.code) and any(each.construct in one for one in known):
                yield each


def _kept(found: Found) -> Found:
    """A finding without edits, where the models are those of a library that stays with FSDP1."""
    if found.edits is None or found.rule.code.startswith(_OF_LIBRARIES):
        return found
    return found._replace(action=Action.MANUAL, message=_LATER, edits=None, imports=(), removed=())


def _local_name(need: Import) -> str:
    """The name by which code uses an import: of `import a.b`, the first one."""
    name = need.name or need.module.partition(".")[0]
    return name.rpartition(" as ")[2]


def _settled(
    found: Sequence[Found],
    is_on: Callable[[Rule, ast.AST], bool],
    form: str,
    text: str | None = None,
) -> list[Made]:
    """The findings with the edits that can be made together.

    If two edits overlap, the first one wins, but for one that takes away all that a finding before it changes.

    Args:
        text: the file's, if the edits of each finding are to be tried by themselves.
    """
    settled: list[Made] = []
    refused: set[ast.AST] = set()
    for each in found:
        if each.of in refused:
            settled.append((undone(each), ()))
            continue
        if each.edits is None or not is_on(each.rule, each.node):
            settled.append((each, ()))
            continue
        try:
            own = each.edits()
            if text is not None:
                apply(text, own)
            taken = [edit for _, edits in settled for edit in edits]
            if overlap([*taken, *own]):
                if is_written(own, taken):
                    settled.append((each._replace(edits=None), ()))
                    continue
                settled = without_removed(settled, own)
        except Refused as refusal:
            if form == "torch":
                action = Action.MANUAL
            else:
                action = each.refused
            message = f"Uses `fsdp_migrate.runtime` instead of torch, because {refusal}."
            if action is Action.MANUAL:
                message = f"{each.message} Not done, because {refusal}: make this change yourself."
            refused.add(each.node)
            refused_one = each._replace(
                action=action, message=message, edits=None, imports=(), removed=()
            )
            settled.append((refused_one, ()))
            continue
        settled.append((each, own))
    return settled


def _changes_settings(found: Found) -> bool:
    """Whether a finding is about another library's settings, or is of FSDP010 and has edits."""
    if found.rule.code.startswith(_OF_LIBRARIES):
        return True
    return found.rule.code == "FSDP010" and found.edits is not None


def _reason(error: Exception) -> str:
    if isinstance(error, Refused | RecursionError):
        return str(error)
    return f"internal error, please report it: {error!r}"


def _severity(found: Found) -> Severity | None:
    if found.action is not Action.MANUAL:
        return None
    return found.severity or found.rule.severity


def _goes_on(found: Found) -> bool:
    """Whether a setting makes another library go on with FSDP1."""
    is_manual = found.action is Action.MANUAL
    return is_manual and found.severity is None and found.rule in OF_SETTINGS


def _is_assumption(found: Found) -> bool:
    """Whether nothing is changed at a place, and something is taken for granted there."""
    return found.rule.code == ASSUMPTION and found.action is Action.REWRITE and found.edits is None


def _finding(file: File, source: Source, found: Found) -> Finding:
    node = found.node
    spelled = (source.runtime or source.package).spelled
    line, column, end_line, end_column = place_of(node)
    return Finding(
        path=file.shown,
        line=line,
        column=file.column(line, column) + 1,
        end_line=end_line,
        end_column=file.column(end_line, end_column) + 1,
        code=found.rule.code,
        name=found.rule.name,
        action=found.action,
        message=spelled(found.message),
        construct=spelled(found.construct or shortened(file.source(node))),
        severity=_severity(found),
        still_fsdp1=_goes_on(found),
        assumption=_is_assumption(found),
    )
