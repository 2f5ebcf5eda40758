"""A configuration file, from its text to its findings and its new text."""

import ast
import re
from bisect import bisect
from collections.abc import Iterator, Sequence

from fsdp_migrate.codemods.by_hand import dynamic_names
from fsdp_migrate.codemods.context import Silenced
from fsdp_migrate.codemods.edit.text import Refused, overlap, spliced
from fsdp_migrate.codemods.libraries import rules
from fsdp_migrate.codemods.libraries.configuration import composer
from fsdp_migrate.codemods.libraries.configuration.commands import commands
from fsdp_migrate.codemods.libraries.configuration.edits import edits_of
from fsdp_migrate.codemods.libraries.configuration.launching import OF_VERL, launches
from fsdp_migrate.codemods.libraries.configuration.project import Project
from fsdp_migrate.codemods.libraries.configuration.reading import Unreadable, from_json, from_yaml
from fsdp_migrate.codemods.libraries.configuration.sections import flat_section, sections, sets_fsdp
from fsdp_migrate.codemods.libraries.configuration.table import (
    KEPT,
    LIGHTNING_NAMES,
    OPTIONS,
    REMOVED,
    STRATEGY_OF_LIGHTNING,
    STRATEGY_OF_VERL,
)
from fsdp_migrate.codemods.libraries.configuration.translate import Said, translate
from fsdp_migrate.codemods.libraries.configuration.tree import (
    Change,
    Entry,
    Mapping,
    Value,
    mappings,
    plain,
)
from fsdp_migrate.codemods.rule import Edit, Rule
from fsdp_migrate.facts.names import TORCH
from fsdp_migrate.findings import Action, Finding, Problem, Severity
from fsdp_migrate.migration import Outcome
from fsdp_migrate.pins import Pins
from fsdp_migrate.report import Change as FileChange
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

# What only a configuration of Lightning's Trainer has beside `strategy`.
_LIGHTNING_KEYS = frozenset({"accelerator", "devices", "max_epochs", "num_nodes"})
# A line that sets FSDP for a library, in a file that does not parse: more than the word, as in a tag `fsdp:1.2`.
_SETS = re.compile(
    rf"""^[ \t{{-]*["']?(?:fsdp_config|fsdp_(?:{"|".join(sorted(KEPT | REMOVED.keys()))}))["']?[ \t]*:"""
    rf"""|^[ \t{{-]*["']?distributed_type["']?[ \t]*:[ \t]*["']?FSDP\b"""
    rf"""|^[ \t{{-]*["']?fsdp["']?[ \t]*:[ \t\["'-]*(?:{"|".join(sorted(OPTIONS))})\b""",
    re.MULTILINE,
)


def without_comments(text: str) -> str:
    """JSON with comments and trailing commas, as in `tsconfig.json`, with spaces in their place."""

    def blank(found: re.Match[str]) -> str:
        return found[1] or re.sub(r"[^\n]", " ", found[0])

    plain = re.sub(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', blank, text, flags=re.DOTALL)
    return re.sub(r'("(?:\\.|[^"\\\n])*")|,(?=\s*[}\]])', blank, plain)


def migrate_file(source: Source, options: Options, pins: Pins | None = None) -> Outcome:
    """Decides one YAML, JSON or shell file, by the releases that the project takes."""
    file = _File(source, options, Project(source.path, pins))
    try:
        file.run()
    except Unreadable as error:
        problem = Problem(source.shown, error.line, f"does not parse: {error}")
        if _SETS.search(source.decoded):
            return Outcome(errors=[problem])
        said = f"skipped, because it {problem.message}; use `exclude` to leave it out"
        file.outcome.passed.append(problem._replace(message=said))
    except RecursionError:
        problem = Problem(source.shown, 0, "left alone: it refers to itself, or nests too deeply")
        return Outcome(errors=[problem])
    except Exception as error:  # as for a program: the other files go on
        problem = Problem(
            source.shown, 0, f"left alone: internal error, please report it: {error!r}"
        )
        return Outcome(errors=[problem])
    file.outcome.of_torch = bool(file.outcome.findings) or None
    return file.outcome


class _File:
    def __init__(self, source: Source, options: Options, project: Project) -> None:
        self.source = source
        self.options = options
        self.project = project
        self.text = source.decoded
        self.is_json = source.ending == ".json"
        commented = self.text
        if self.is_json:
            commented = ""  # JSON has no comments
        self.silenced = Silenced(commented)
        self.starts = [0, *[found.end() for found in re.finditer(r"\n", self.text)]]
        self.outcome = Outcome(after=self.text)

    def run(self) -> None:
        lines = self.launches()
        if self.source.ending == ".sh":
            return
        roots = self.read(self.text)
        for place, message in commands(roots, self.project):
            if self.place(place[0])[0] not in lines:
                self.say(rules.FLAGS, place, message, Action.MANUAL)
                self.outcome.sets_fsdp = True
        self.settings(roots)

    def launches(self) -> set[int]:
        """Commands in the text, and the lines on which they were found."""
        found = set[int]()
        is_shell = self.source.ending == ".sh"
        if self.is_json:
            return found
        for line in launches(self.text, self.project, is_shell):
            self.say(line.rule, (line.start, line.end), line.message, Action.MANUAL)
            self.outcome.sets_fsdp |= line.rule == rules.FLAGS
            found.add(self.place(line.start)[0])
        return found

    def settings(self, roots: Sequence[Value]) -> None:
        """Settings by name, which are rewritten where they can be."""
        self.outcome.sets_fsdp |= any(map(sets_fsdp, roots))
        changes: list[Change] = []
        edits: list[Edit] = []
        for rule, said in self.translated(roots):
            wanted = [each.change for each in said if each.change]
            if not wanted:
                self.report(rule, said)
                continue
            shown = [self.is_on(rule, each.place.span) for each in said]
            try:
                if not all(shown):
                    raise Refused("a comment silences a part of it")
                if self.options.form == "bridge":
                    raise Refused("`--form bridge` changes only imports")
                if self.is_json:
                    text = without_comments(self.text)
                else:
                    text = self.text
                together = [*edits, *edits_of(text, wanted)]
                if overlap(together):
                    raise Refused("two sections share a setting, and want different things")
                self.check(roots, [*changes, *wanted], together)
            except Refused as refusal:
                self.report(
                    rule,
                    said,
                    (
                        f"Still selects FSDP1: fsdp-migrate did not change it, because {refusal}. Change it yourself."
                    ),
                )
                continue
            changes += wanted
            edits = together
            self.report(rule, said)
        if edits and not self.options.only_checks:
            self.outcome.after = spliced(self.text, edits)
            after = self.source.encode(self.outcome.after)
            self.outcome.change = FileChange(self.source.path, self.source.data, after)

    def read(self, text: str) -> list[Value]:
        if self.is_json:
            return from_json(without_comments(text))
        return from_yaml(text)

    def translated(self, roots: Sequence[Value]) -> Iterator[tuple[Rule, list[Said]]]:
        """The findings of each section, with its rule."""
        found = [section for root in roots for section in sections(root)]
        if not found and self.is_json and isinstance(roots[0], Mapping):
            section = flat_section(roots[0])
            if section:
                found = [section]
        for section in found:
            self.outcome.is_too_old |= bool(self.project.too_old(section.rule))
            yield section.rule, translate(section, self.project)
        for root in roots:
            for entry, settings in composer.settings_in(root):
                composers = composer.said_of(settings, self.project)
                if composers:
                    yield rules.COMPOSER, [Said(entry, composers)]
                else:
                    yield rules.COMPOSER, []
        yield from self.by_path(roots)
        for entry in _entries(roots):
            if entry.key.lower().endswith(("strategy", "class_path", "_target_")):
                yield from self.strategy(entry)

    def strategy(self, entry: Entry) -> Iterator[tuple[Rule, list[Said]]]:
        """An entry that names a strategy: Lightning's class or one of its words, or verl's."""
        name = entry.data
        if not isinstance(name, str):
            return
        if name.endswith(".FSDPStrategy"):
            yield rules.LIGHTNING, [Said(entry, STRATEGY_OF_LIGHTNING)]
        elif name in LIGHTNING_NAMES:
            keys = {other.key for other in entry.owner.entries}
            if entry.key == "strategy" and _LIGHTNING_KEYS & keys:
                yield rules.LIGHTNING, [Said(entry, STRATEGY_OF_LIGHTNING)]
            elif OF_VERL(self.text):
                message = STRATEGY_OF_VERL.format(f"Write `{entry.key}: fsdp2`")
                yield rules.VERL, [Said(entry, message)]

    def by_path(self, roots: Sequence[Value]) -> Iterator[tuple[Rule, list[Said]]]:
        """FSDP1's names by their paths, as for Hydra's `_target_`; Lightning's FSDPStrategy is FSDP1 and takes torch's."""
        if ".FSDPStrategy" in self.text:
            return
        for entry in _entries(roots):
            path = entry.data
            if isinstance(path, str) and path.startswith(TORCH) and dynamic_names.is_of_fsdp1(path):
                message = dynamic_names.may_give(path, self.options.form)
                yield dynamic_names.RULE, [Said(entry, message)]

    def check(self, roots: Sequence[Value], changes: Sequence[Change], edits: list[Edit]) -> None:
        """The new text says what was meant, and nothing else has changed."""
        if self.is_json and without_comments(self.text) != self.text:
            raise Refused("it is JSON with comments")
        try:
            after = [plain(root) for root in self.read(spliced(self.text, edits))]
        except Unreadable as error:
            raise Refused(f"the result would not parse ({error})") from None
        if after != [plain(root, changes) for root in roots]:
            raise Refused("the rewritten file would mean something else")

    def report(self, rule: Rule, said: Sequence[Said], refusal: str = "") -> None:
        for each in said:
            if each.change and not refusal:
                action = Action.REWRITE
            else:
                action = Action.MANUAL
            message = (each.change and refusal) or each.message
            self.say(rule, each.place.span, message, action, each.severity)

    def say(
        self,
        rule: Rule,
        span: tuple[int, int],
        message: str,
        action: Action,
        severity: Severity | None = None,
    ) -> None:
        if self.is_on(rule, span):
            places = (*self.place(span[0]), *self.place(span[1]))
            construct = self.text[slice(*span)].split("\n")[0].strip()
            of = rule.code, rule.name
            is_manual = action is Action.MANUAL
            goes_on = is_manual and severity is None and rule in rules.OF_SETTINGS
            if not is_manual:
                severity = None
            elif severity is None:
                severity = rule.severity
            found = Finding(self.source.shown, *places, *of, action, message, construct, severity)
            self.outcome.findings.append(found._replace(still_fsdp1=goes_on))

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1."""
        line = bisect(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1

    def is_on(self, rule: Rule, span: tuple[int, int]) -> bool:
        """Whether a rule is selected, and not silenced on a line."""
        line = ast.Pass(lineno=self.place(span[0])[0], col_offset=0)
        return not self.silenced(rule, line) and self.options.takes(rule.code)


def _entries(roots: Sequence[Value]) -> Iterator[Entry]:
    """The entries of all mappings in a file."""
    for root in roots:
        for mapping in mappings(root):
            yield from mapping.entries
