"""From parsed files to findings and new sources: the codemods run, models are migrated whole or not at all.

A construct that nothing can rewrite and that would go on running and do something else (a *silent* one) keeps its model from
being migrated: a half-migrated model would train wrongly without an error.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath

import libcst as cst

from fsdp_migrate.codemods import constructor, imports, names
from fsdp_migrate.codemods.apply import Refused, apply
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.mark import mark
from fsdp_migrate.codemods.plan import Plan
from fsdp_migrate.codemods.registry import CODEMODS, CONTRACT
from fsdp_migrate.codemods.rule import Draft, Edit
from fsdp_migrate.discover import mentions_fsdp
from fsdp_migrate.findings import Action, Finding, Problem
from fsdp_migrate.index.models import Models
from fsdp_migrate.index.module import NEWLINE, Module
from fsdp_migrate.index.project import Project
from fsdp_migrate.index.sharded import Sharded
from fsdp_migrate.report import Change, Report
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source
from fsdp_migrate.stage import of_checkpoints
from fsdp_migrate.style import line_length

_SILENCED = re.compile(r"#\s*fsdp-migrate:\s*ignore\b(?:\[([A-Za-z0-9,\s]*)\])?")


def migrate(sources: Mapping[Module, Source], options: Options, report: Report) -> None:
    """Adds findings, errors and changed files to the report."""
    project = Project(sources)
    models = Models(project)
    sharded = Sharded(models) if options.fsdp2 else None
    reached = models.reached | (sharded.reached if sharded else set())
    plans: dict[ast.Call, Plan] = {}
    contexts = {
        module: Context(module, project, models, plans, line_length(module.path), sharded)
        for module in project.modules
        if mentions_fsdp(sources[module].data) or module in reached
    }
    for module, call in models.constructors:
        plans[call] = constructor.plan(contexts[module], call)
    if contexts:
        _Migration(contexts, models, sources, options, report).run()


class _Migration:
    """The files of one run, decided together."""

    def __init__(
        self,
        contexts: Mapping[Module, Context],
        models: Models,
        sources: Mapping[Module, Source],
        options: Options,
        report: Report,
    ) -> None:
        self.contexts = contexts
        self.models = models
        self.sources = sources
        self.options = options
        self.report = report
        self.broken: set[Module] = set()  # files that cannot be edited
        self.drafts = {module: self.find(context) for module, context in contexts.items()}
        self.groups = _groups(contexts, self.drafts)

    def run(self) -> None:
        """Finishes every file; a file that refuses its edits keeps its models, and all is decided again."""
        while True:
            held = self.held()
            results: dict[Module, tuple[list[Finding], str | None]] = {}
            refused = False
            for module, context in self.contexts.items():
                try:
                    results[module] = self.finish(context, held)
                except Exception as error:
                    self.fail(module, error)
                    refused = True
            if not refused:
                break
        for module, (findings, after) in results.items():
            source = self.sources[module]
            self.report.findings += findings
            if after is not None and after != source.text:
                try:
                    data = source.encode(after)
                except UnicodeEncodeError as error:
                    self.report.errors.append(Problem(module.shown, 0, f"left alone: {error}"))
                    continue
                self.report.changes.append(Change(source.path, source.data, data))

    def find(self, context: Context) -> list[Draft]:
        """What the codemods say of one file."""
        drafts: list[Draft] = []
        try:
            for codemod in CODEMODS:
                drafts += codemod.find(context)
            for breaches in CONTRACT if context.sharded else ():
                drafts += breaches.find(context)
        except Exception as error:
            self.fail(context.module, error)
        if not self.options.checkpoints_only:
            return [*drafts, *names.find(context, _gone(drafts), drafts)]
        drafts += names.find(context, _gone(of_checkpoints(drafts)), drafts)
        first = of_checkpoints(drafts)
        self.report.later += len(drafts) - len(first)
        return first

    def fail(self, module: Module, error: Exception) -> None:
        """A file whose analysis or edits fail stays as it is and is named; the others go on."""
        expected = isinstance(error, Refused | LookupError | cst.ParserSyntaxError | RecursionError)
        reason = str(error) if expected else f"internal error, please report it: {error!r}"
        line = error.raw_line if isinstance(error, cst.ParserSyntaxError) else 0
        first = reason.splitlines()[0] if reason else type(error).__name__
        self.report.errors.append(Problem(module.shown, line, f"left alone: {first}"))
        self.broken.add(module)

    def held(self) -> dict[Module, str]:
        """The files that stay as they are, and why: something in them, or around them, would go wrong in silence.

        Files that hang together are migrated together or not at all: an `isinstance(model, FSDP)` cannot be right for
        a model that moved and for one that stayed.
        """
        held: dict[Module, str] = {}
        if self.options.checkpoints_only:  # no model moves: every edit is sound by itself
            return {module: f"{module.shown} cannot be edited" for module in self.broken}
        for module, drafts in self.drafts.items():
            if module in self.broken:
                self.hold(held, [module], f"{module.shown} cannot be edited")
            for draft in drafts:
                by_hand = self.options.partial and draft.action is Action.MANUAL
                if (draft.silent and not by_hand) or self.is_withheld(self.contexts[module], draft):
                    concerned = [module, *(site.module for site in draft.sites)]
                    line = getattr(draft.node, "lineno", 0)
                    reason = f"{draft.rule.code} at {module.shown}:{line} comes first"
                    # A test says nothing of the library that it tests.
                    self.hold(
                        held, [m for m in concerned if is_test(m) or not is_test(module)], reason
                    )
        for module in self.contexts:
            for imported in self.models.project.imports[module]:
                if imported in held:  # a test is of the library as it is
                    self.hold(held, [module], held[imported])
        return held

    def hold(self, held: dict[Module, str], modules: Iterable[Module], reason: str) -> None:
        """Keeps files as they are, and all that hang together with them."""
        for module in modules:
            for member in self.groups[module]:
                held.setdefault(member, reason)

    def is_withheld(self, context: Context, draft: Draft) -> bool:
        """Whether a rewrite is switched off: by a comment, by an option, or because it is not provably the same.

        A comment on the line of an argument keeps the whole call: an argument is not dropped unheard.
        """
        if not draft.edits and not draft.places:
            argument = bool(draft.sites) and draft.action is not Action.MANUAL
            return argument and _is_silenced(context.module, draft)
        return (not draft.safe and not self.options.unsafe) or not self.is_shown(context, draft)

    def is_shown(self, context: Context, draft: Draft) -> bool:
        """Whether the user wants to hear of a finding."""
        code = draft.rule.code
        if (self.options.select and code not in self.options.select) or code in self.options.ignore:
            return False
        return not _is_silenced(context.module, draft)

    def finish(
        self, context: Context, held: Mapping[Module, str]
    ) -> tuple[list[Finding], str | None]:
        """The findings of one file, and its text afterwards if it changes."""
        module = context.module
        drafts = [self.settled(context, draft, held) for draft in self.drafts[module]]
        needs = [need for draft in drafts for need in draft.needs]
        edits = [edit for draft in drafts for edit in draft.edits]
        places = [place for draft in drafts for place in draft.places]
        whole = module not in held and not self.options.checkpoints_only
        after = None
        if edits or not self.options.checkpoints_only:
            planned = imports.plan(
                context,
                _gone(drafts),
                needs,
                lambda: apply(context.syntax, edits, (), context.line_length, places),
                whole=whole,
            )
            found = [self.settled(context, draft, held) for draft in planned.drafts]
            drafts += of_checkpoints(found) if self.options.checkpoints_only else found
            edits = [*edits, *planned.edits]
        if (edits or places) and module not in self.broken and module not in held:
            edits += self.marks(context, drafts, edits)
            insert = planned.insert
            after = apply(context.syntax, edits, insert, context.line_length, places)
        findings = [_finding(module, draft) for draft in drafts if self.is_shown(context, draft)]
        return findings, after

    def settled(self, context: Context, draft: Draft, held: Mapping[Module, str]) -> Draft:
        """The draft as it is if its model is migrated; otherwise without edits, and saying so."""
        if draft.action is Action.MANUAL:
            return draft
        reasons = [held[m] for m in (context.module, *(s.module for s in draft.sites)) if m in held]
        if not reasons and not self.is_withheld(context, draft):
            return draft
        reason = reasons[0] if reasons else "this rewrite is switched off"
        message = f"stays: {reason}; then: {draft.message}"
        return replace(
            draft,
            action=Action.MANUAL,
            message=message,
            edits=(),
            places=(),
            needs=(),
            gone=(),
            mark=False,
        )

    def marks(
        self, context: Context, drafts: Iterable[Draft], edits: Iterable[Edit]
    ) -> Iterator[Edit]:
        """Comments at what is left by hand in a file that changes."""
        taken = {edit.node for edit in edits if edit.whole}
        said: set[tuple[cst.CSTNode, str, str]] = set()
        for draft in drafts:
            if draft.action is not Action.MANUAL or not (draft.mark or draft.silent):
                continue
            edit = mark(context, draft)
            if edit is None or edit.node in taken or _below(context, edit.node, taken):
                continue
            label = (edit.node, draft.rule.code, draft.message)
            if label not in said:  # one comment of a kind above a statement
                said.add(label)
                yield edit


def _below(context: Context, node: cst.CSTNode, taken: set[cst.CSTNode]) -> bool:
    above = context.syntax.parents.get(node)
    while above is not None:
        if above in taken:
            return True
        above = context.syntax.parents.get(above)
    return False


def _is_silenced(module: Module, draft: Draft) -> bool:
    codes = _silenced(module, getattr(draft.node, "lineno", 1))
    return codes is not None and (not codes or draft.rule.code in codes)


def _silenced(module: Module, line: int) -> frozenset[str] | None:
    """The codes that a comment on a line silences; empty for all of them, None where there is no such comment."""
    if "fsdp-migrate:" not in module.text:
        return None
    lines = NEWLINE.split(module.text)
    found = _SILENCED.search(lines[line - 1]) if 0 < line <= len(lines) else None
    if found is None:
        return None
    return frozenset(code.strip().upper() for code in (found[1] or "").split(",") if code.strip())


def _groups(
    contexts: Mapping[Module, Context], drafts: Mapping[Module, list[Draft]]
) -> dict[Module, frozenset[Module]]:
    """Which files hang together: one imports the other, or a model of one is used in the other."""
    project = next(iter(contexts.values())).project
    group: dict[Module, set[Module]] = {module: {module} for module in project.modules}

    def join(one: Module, other: Module) -> None:
        if is_test(one) == is_test(other) and group[one] is not group[other]:
            merged = group[one] | group[other]
            for module in merged:
                group[module] = merged

    for module, imported in project.imports.items():
        for other in imported:
            join(module, other)
    for module, found in drafts.items():
        for draft in found:
            for site in draft.sites:
                join(module, site.module)
    return {module: frozenset(members) for module, members in group.items()}


def _gone(drafts: Iterable[Draft]) -> set[ast.AST]:
    """All nodes in code that the drafts take away."""
    return {node for draft in drafts for region in draft.gone for node in ast.walk(region)}


def is_test(module: Module) -> bool:
    """Whether a file is a test, by its name or folder."""
    folders = {part.lower() for part in PurePath(module.shown).parts[:-1]}
    return bool(folders & {"test", "tests"}) or module.path.name.startswith(("test_", "conftest"))


def _finding(module: Module, draft: Draft) -> Finding:
    node = draft.node
    line, end_line = getattr(node, "lineno", 1), getattr(node, "end_lineno", None)
    return Finding(
        path=module.shown,
        line=line,
        column=module.column(line, getattr(node, "col_offset", 0)) + 1,
        end_line=end_line or line,
        end_column=module.column(end_line or line, getattr(node, "end_col_offset", 0) or 0) + 1,
        code=draft.rule.code,
        name=draft.rule.name,
        action=draft.action,
        safe=draft.safe,
        message=draft.message,
        construct=draft.construct,
    )
