"""FSDP1 of Accelerate and transformers as Python sets it: in calls and in dictionaries."""

import ast
import os
import re
from bisect import bisect
from collections.abc import Iterator
from typing import cast

from fsdp_migrate.codemods.constructor.options import policy_source
from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.libraries import rules
from fsdp_migrate.codemods.libraries.configuration import table, tree
from fsdp_migrate.codemods.libraries.configuration.edits import edits_of
from fsdp_migrate.codemods.libraries.configuration.launching import (
    LEFT_OUT,
    OF_VERL,
    UNSURE,
    is_left_out,
    said_of,
)
from fsdp_migrate.codemods.libraries.configuration.project import Project
from fsdp_migrate.codemods.libraries.configuration.reading import from_call, from_python
from fsdp_migrate.codemods.libraries.configuration.sections import (
    Section,
    flat_section,
    is_first,
    section_of,
)
from fsdp_migrate.codemods.libraries.configuration.translate import translate
from fsdp_migrate.codemods.libraries.words import given, has_words, is_computed
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Import
from fsdp_migrate.facts.file import File, last_name, place_of
from fsdp_migrate.facts.names import TORCH
from fsdp_migrate.facts.nodes import constant
from fsdp_migrate.facts.program import Program
from fsdp_migrate.findings import Action, Severity
from fsdp_migrate.pins import Pins
from fsdp_migrate.search import Search
from fsdp_migrate.source import is_test

_ENUMS = frozenset({"BackwardPrefetch", "FSDPOption", "ShardingStrategy", "StateDictType"})
# What MixedPrecision has that FSDP2 has too, or leaves as it is.
_OF_BOTH = frozenset({"param_dtype", "reduce_dtype", "buffer_dtype"})
_FROM_ENVIRONMENT = (
    "This selects FSDP1, unless the environment sets `FSDP_VERSION=2`. Pass `fsdp_version=2`."
)
_SWITCH = "ACCELERATE_USE_FSDP"
_DISAGREE = (
    " Configuration files of this run select FSDP2 now: until you add it here, the two disagree."
)
_IS_FSDP = r"[\"']?\s*(?P<sign>==|=|:(?:[ \w\[\]|]+=)?)\s*[\"']?fsdp\b(?![\w.])[\"']?"
_STRATEGY = re.compile(rf"\b(?P<name>\w*(?:strategy|STRATEGY)){_IS_FSDP}")
_STRATEGIES = Search(f"strategy{_IS_FSDP}|STRATEGY{_IS_FSDP}")  # found sooner
_SKIPPED = (
    "This test is false for verl's `fsdp2`, which shards the model as well, so its branch does not run. Test for both "
    "values."
)
_RAISES = "This test is false for verl's `fsdp2`, for which the program raises in line {}. Test for both values."
# What a test calls that trains, or starts what does.
_STARTS = re.compile(
    r"(?:\b|_)(?:backward|execute|fit|init_process_group|launch|(?<!pytest\.)main|prepare|run|spawn|step|train)\w*\("
    r"|\bsubprocess\.|(?:Trainer|Worker)\w*\("
)


@codemod(
    words=(
        "fsdp=",
        "fsdp =",
        "fsdp:",
        "fsdp_config",
        '"fsdp',
        "'fsdp",
        "Plugin",
        "ACCELERATE_USE_FSDP",
        "fsdp_plugin",
        "strategy",
        "--fsdp",
    )
)
def find(context: Context) -> Iterator[Found]:
    """Calls and dictionaries that set FSDP1 for another library."""
    file = context.file
    imported = "FullyShardedDataParallelPlugin" in file.text
    reader = _Reader(context)
    for call in file.of(ast.Call):
        if imported or any(str(keyword.arg).startswith("fsdp") for keyword in call.keywords):
            yield from reader.call(call)
    for place, value in given(file):
        if has_words(value) and not only_reads(context, place):
            yield Found(rules.TRANSFORMERS, place, Action.MANUAL, reader.of_words)
    if not is_accelerates(context):
        yield from _of_plugin(file)
        yield from _of_environment(context)
    yield from reader.strategies()
    for literal in file.of(ast.Dict):
        keys = [key.value for key in literal.keys if isinstance(key, ast.Constant)]
        if any(str(key).startswith("fsdp") for key in keys):
            yield from reader.section(literal)


def _of_plugin(file: File) -> Iterator[Found]:
    """Fields of a plugin that a program sets itself, and version 2 has no use for."""
    for name, reason in table.REMOVED.items():
        for field in file.attributes.get(name, ()):
            if isinstance(field.ctx, ast.Store) and last_name(field.value).endswith("fsdp_plugin"):
                yield Found(rules.PLUGIN, field, Action.MANUAL, LEFT_OUT.format(reason))


def _of_environment(context: Context) -> Iterator[Found]:
    """Variables of Accelerate's that a program sets, for itself or what it starts."""
    file = context.file
    if _SWITCH not in file.text:
        return  # nothing reads the others
    if is_test(str(file.path)):
        return
    for place, name, value in _variables(file):
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            given = UNSURE
            if isinstance(value, ast.Constant):
                given = str(value.value)
            said = said_of(name.value, given, project_of(context))
            # With a version the program knows both: what is left out for version 2 has no meaning there.
            if name.value == _SWITCH and context.program.is_raised and said:
                said += _DISAGREE
            if said and ("FSDP_VERSION" not in file.text or is_left_out(name.value)):
                yield Found(rules.FLAGS, place, Action.MANUAL, said)


def is_accelerates(context: Context) -> bool:
    """Whether a file is one of Accelerate itself."""
    own = context.program.tree.locate("accelerate.accelerator", context.file.folder)
    return own is not None and str(context.file.path).startswith(os.path.dirname(own))


def _variables(file: File) -> Iterator[tuple[ast.AST, ast.expr, ast.expr]]:
    """What is set under a name: `env[name] = value`, `setdefault(name, value)`, `{name: value}`, `update(name=value)`."""
    stored = [(each, each.targets[0], each.value) for each in file.of(ast.Assign)]
    for at, to, value in stored:
        if isinstance(to, ast.Subscript):
            yield (at, to.slice, value)
    calls = file.calls.get("setdefault", ())
    for c in calls:
        if len(c.args) == 2:
            yield (c, c.args[0], c.args[1])
    for literal in file.of(ast.Dict):
        pairs = zip(literal.keys, literal.values, strict=True)
        for key, value in pairs:
            if key is not None:
                yield (key, key, value)
    for call in (*file.calls.get("update", ()), *file.calls.get("dict", ())):
        for each in call.keywords:
            yield (each, ast.Constant(each.arg), each.value)


def only_reads(context: Context, node: ast.AST) -> bool:
    """Whether a test checks how settings are read, and trains nothing: the old ones are what it is about."""
    file = context.file
    if not is_test(str(file.path)):
        return False
    line = place_of(node)[0]
    text = file.text
    for function in file.of(ast.FunctionDef):
        first, _, last, _ = place_of(function)
        if first <= line <= last and function.name.startswith("test"):
            text = file.source(function)
            break
    return _STARTS.search(text) is None


def _raises_without(file: File, test: ast.expr) -> ast.stmt | None:
    """The statement that raises if a test is false, at the end of its branches."""
    statement = file.statement(test)
    if isinstance(statement, ast.Assert):
        return statement
    rest = [statement]
    while isinstance(rest[0], ast.If) and rest[0].orelse:
        rest = rest[0].orelse
    if isinstance(rest[-1], ast.Raise):
        return rest[-1]
    return None


def project_of(context: Context) -> Project:
    """What is around a file's settings."""
    return Project(context.file.path, context.program.once(_pins))


def _pins(program: Program) -> Pins:
    return Pins(program.tree.paths)


class _Reader:
    """The settings in one file."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.file = context.file
        self._seen: set[tree.Span] = set()
        self.project = project_of(context)

    @property
    def of_words(self) -> str:
        """What to do with words of transformers' `fsdp` that stand alone."""
        if old := self.project.too_old(rules.TRANSFORMERS):
            return old
        how = "Keep it"
        if self.project.has_flag:
            how = "Write `True` here"
        return f"This selects FSDP1. {how}, and in `fsdp_config`, {table.STRATEGY}."

    def call(self, call: ast.Call) -> Iterator[Found]:
        """Findings about the arguments of a call."""
        if only_reads(self.context, call):
            return
        arguments = {keyword.arg: keyword for keyword in call.keywords}
        path = next(iter(self.context.dotted(call.func)), "")
        if path.startswith("accelerate.") and path.endswith(".FullyShardedDataParallelPlugin"):
            yield from self.plugin(call)
        elif {"fsdp", "fsdp_config"} & arguments.keys():
            found = list(self.section(call))
            yield from found
            words = arguments.get("fsdp")
            if not found and words is not None and is_computed(words.value):
                yield Found(rules.TRANSFORMERS, words, Action.MANUAL, self.of_words)

    def plugin(self, call: ast.Call) -> Iterator[Found]:
        settings = from_call(self.file, call, self.resolve)
        if not settings.entries:  # `Plugin()`, `Plugin(**options)`
            yield Found(rules.PLUGIN, call, Action.MANUAL, _FROM_ENVIRONMENT)
        elif is_first(settings):
            nodes = {self.file.span(keyword): keyword for keyword in call.keywords}
            yield from self.found(Section(rules.PLUGIN, settings, None, settings), nodes)

    def section(self, node: ast.Call | ast.Dict) -> Iterator[Found]:
        """Findings about a section, each once: calls first, then the remaining dictionaries."""
        if self.file.span(node) in self._seen or only_reads(self.context, node):
            return
        if isinstance(node, ast.Call):
            home: tree.Value = from_call(self.file, node, self.resolve)
        else:
            home = from_python(self.file, node, self.resolve)
        assert isinstance(home, tree.Mapping)
        section = section_of(home) or flat_section(home)
        for mapping in tree.mappings(home):
            self._seen.add(mapping.span)
        if section is not None:
            yield from self.found(section, {})

    def found(self, section: Section, nodes: dict[tree.Span, ast.keyword]) -> Iterator[Found]:
        said = translate(section, self.project)
        changes = [each.change for each in said if each.change]
        gone = [each for each in said if isinstance(each.change, tree.Remove | tree.Replace)]
        removed = tuple(nodes[each.place.span] for each in gone if each.place.span in nodes)
        imports: tuple[Import, ...] = ()
        if any(
            isinstance(each, tree.Replace) and isinstance(each.value, tree.Code) for each in changes
        ):
            imports = (Import(TORCH, "MixedPrecisionPolicy"),)
        for each in said:
            finding = Found(
                section.rule,
                self.at(each.place.span),
                Action.MANUAL,
                each.message,
                severity=each.severity,
            )
            if each.change is not None and not self.context.in_place:
                message = (
                    "Still selects FSDP1: fsdp-migrate did not change it, because `--form bridge` changes only imports. "
                    "Change it yourself."
                )
                finding = finding._replace(message=message)
            elif each.change is not None:
                finding = finding._replace(action=Action.REWRITE)
                if each.change is changes[0]:  # the first one makes the edits of all
                    edits = lambda: edits_of(self.file.text, changes)  # noqa: E731
                    finding = finding._replace(edits=edits, imports=imports, removed=removed)
            yield finding

    def strategies(self) -> Iterator[Found]:
        """What selects FSDP1 in verl, in code or in text such as YAML, and tests for a strategy that know no other."""
        text = self.file.text
        knows_both = "fsdp2" in text or "fully_shard" in text
        is_set = _STRATEGIES(text) and OF_VERL(text)
        if not is_set:
            return
        for found in _STRATEGY.finditer(text):
            place = self.at(found.span())
            line = text[: found.start()].rpartition("\n")[2]
            if "#" in line or "def " in line or only_reads(self.context, place):
                continue
            if found["sign"] != "==":
                said = table.STRATEGY_OF_VERL.format(f"Set `{found['name']}` to `fsdp2`")
                yield Found(rules.VERL, place, Action.MANUAL, said)
            elif not knows_both:
                yield self.unequal(place, found.start())

    def unequal(self, place: ast.AST, start: int) -> Found:
        """A test for `fsdp` alone: code is skipped for `fsdp2`, or the program raises."""
        for compare in self.file.of(ast.Compare):
            first, behind = self.file.span(compare)
            if first <= start < behind:
                raising = _raises_without(self.file, compare)
                if raising is not None:
                    message = _RAISES.format(raising.lineno)
                    return Found(
                        rules.VERL, place, Action.MANUAL, message, severity=Severity.RAISES
                    )
        return Found(rules.VERL, place, Action.MANUAL, _SKIPPED, severity=Severity.SILENT)

    def resolve(self, node: ast.expr) -> tree.Data | ast.expr:
        """What an expression that is no literal says: the name of a member, FSDP1's offloading, a literal elsewhere."""
        match node:
            case ast.Attribute(value=ast.Name() | ast.Attribute() as enumeration, attr=member):
                owner = last_name(enumeration)
                if owner == "FSDPOption":
                    return member.lower()
                if owner in _ENUMS:
                    return member
            case ast.Call(func=function) if self.context.fsdp1(function) == "CPUOffload":
                given = keyword(node, "offload_params", 0)
                return table.CPUOffload(constant(given) is True)
            case ast.Call(func=function) if self.context.fsdp1(function) == "MixedPrecision":
                if {each.arg for each in node.keywords} <= _OF_BOTH and len(node.args) < 4:
                    return tree.Code(policy_source(self.context, node, False))
            case ast.Name():
                return self.literal(node)
        return tree.UNKNOWN

    def literal(self, name: ast.Name) -> tree.Data | ast.expr:
        """The literal that a name means, if it means one."""
        value = self.context.value(name)
        if value is None or not isinstance(value.node, ast.Dict | ast.Constant):
            return tree.UNKNOWN
        if value.file is self.file:
            return value.node
        if isinstance(value.node, ast.Constant):
            return cast(tree.Data, value.node.value)
        return tree.UNKNOWN

    def at(self, span: tree.Span) -> ast.AST:
        """A node that has a place and nothing else."""
        (line, column), (end_line, end_column) = [self.position(place) for place in span]
        return ast.Pass(
            lineno=line, col_offset=column, end_lineno=end_line, end_col_offset=end_column
        )

    def position(self, place: int) -> tuple[int, int]:
        line = bisect(self.file.line_starts, place)
        return line, len(self.file.text[self.file.line_starts[line - 1] : place].encode())
