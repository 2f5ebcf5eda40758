"""FSDP1's option objects, rewritten where they are made: `MixedPrecision(...)`, and None in its place.

An object is rewritten if everything that can come to the constructors is seen, and nothing else reads it. What is not so stays
FSDP1's, and each constructor makes FSDP2's from it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.flow import Flow
from fsdp_migrate.codemods.constructor.named_meshes import named
from fsdp_migrate.codemods.constructor.predicates import Predicates
from fsdp_migrate.codemods.constructor.reads import read_elsewhere, whole_sets
from fsdp_migrate.codemods.constructor.strategies import Strategies
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.items import read
from fsdp_migrate.codemods.edit.text import comments, spliced
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import NEWLINE, File, last_name, values_given
from fsdp_migrate.facts.nodes import has_star
from fsdp_migrate.facts.program import Program

# FSDP1's fields in their order, with their defaults.
FIELDS = {
    "param_dtype": None,
    "reduce_dtype": None,
    "buffer_dtype": None,
    "keep_low_precision_grads": False,
    "cast_forward_inputs": False,
    "cast_root_forward_inputs": True,
    "_module_classes_to_ignore": ...,
}
# Fields that `MixedPrecisionPolicy` does not have, which somebody took out by a comment.
_OTHERS = [
    name for name in FIELDS if name not in ("param_dtype", "reduce_dtype", "cast_forward_inputs")
]
_TAKEN_OUT = re.compile(rf"(?m)^[ \t]*#[ \t]*({'|'.join(_OTHERS)})[ \t]*=[^\n]*\n")


@dataclass(frozen=True, eq=False)
class Precision:
    """What one `MixedPrecision(...)` gives, field by field, where it differs from FSDP1's default; empty for None.

    Attributes:
        sources: each field as source.
        constants: those that are literals.
    """

    sources: dict[str, str]
    constants: dict[str, object]

    def constant(self, name: str) -> object:
        """The literal value of a field, or its default; `...` for an expression."""
        if name in self.constants:
            return self.constants[name]
        if name in self.sources:
            return ...
        return FIELDS[name]


def precision_of(program: Program, file: File, made: ast.expr) -> Precision | None:
    """The fields that a `MixedPrecision(...)` or None gives; None for what is neither, or takes more than names show."""
    if isinstance(made, ast.Constant) and made.value is None:
        return Precision({}, {})
    if not isinstance(made, ast.Call) or program.fsdp1(made.func, file) != "MixedPrecision":
        return None
    names = [*FIELDS][: len(made.args)] + [str(keyword.arg) for keyword in made.keywords]
    values = values_given(made)
    if len({*names} & {*FIELDS}) != len(values):
        return None
    if has_star(made):
        return None
    given = dict(zip(names, values, strict=True))
    constants = {n: v.value for n, v in given.items() if isinstance(v, ast.Constant)}
    sources = {n: file.source(v) for n, v in given.items() if constants.get(n, ...) != FIELDS[n]}
    return Precision(sources, {n: v for n, v in constants.items() if n in sources})


UNSHOWN = "unshown"
_PRINTS = ("print", "info", "debug", "warning", "log")


class Rewritten:
    """The option objects of a run that are rewritten where they are made.

    Attributes:
        ends: the expressions that make them.
        values: the arguments of constructors that take them.
        casting: those that say by themselves whether the units below the root cast their inputs, as not all say the same.
        strategies: those of the constructors; None if they are given none.
        predicates: the policies of the constructors that become functions of one module; None if no loop asks any.
        buffer_dtypes: reads of `buffer_dtype`, which FSDP2's policy has not, each with its file and what takes its place.
    """

    def __init__(self, program: Program, constructions: Sequence[Construction]) -> None:
        self.predicates: Predicates | None = None
        self._constructions = constructions
        self.ends: dict[ast.expr, File] = {}
        self.values: set[ast.expr] = set()
        self.casting: set[ast.expr] = set()
        self.buffer_dtypes: dict[ast.expr, tuple[File, str]] = {}
        given = [each for each in constructions if each.value("sharding_strategy") is not None]
        self.strategies: Strategies | None = None
        if given:
            self.strategies = Strategies(program, given)
        taking = {
            value: construction
            for construction in constructions
            if (value := construction.value("mixed_precision")) is not None
        }
        if not taking:
            return
        flows = [(value, construction.flow(value)) for value, construction in taking.items()]
        passed = {node for _, flow in flows for node in flow.passed}
        passed |= {value for value, _ in flows}
        kept: list[tuple[ast.expr, Flow]] = []
        for value, flow in flows:
            if self._is_seen(program, taking[value], value, flow):
                if _reads(program, flow, passed) is not None:
                    kept.append((value, flow))
        for value, flow in whole_sets(flows, kept):
            self.values.add(value)
            self.buffer_dtypes |= _reads(program, flow, passed) or {}
            self.ends |= {end.node: end.file for end in flow.ends}
            found = [precision_of(program, end.file, end.node) for end in flow.ends]
            if (
                len(
                    {
                        each.constant("cast_forward_inputs")
                        for each in found
                        if each and each.sources
                    }
                )
                > 1
            ):
                self.casting |= {value, *[end.node for end in flow.ends]}
        for file in dict.fromkeys(self.ends.values()):
            unread = [*_unread(program, file, self.ends)]
            if any(made in self.casting for made, home in self.ends.items() if home is file):
                self.casting |= {*unread}
            self.ends |= dict.fromkeys(unread, file)

    @cached_property
    def named_meshes(self) -> dict[ast.Call, tuple[File, str]]:
        """The calls that make meshes, which get names for their dimensions, each with its file and its source."""
        given = [each for each in self._constructions if each.value("device_mesh") is not None]
        if given:
            return named(given)
        return {}

    def _is_seen(
        self, program: Program, construction: Construction, value: ast.expr, flow: Flow
    ) -> bool:
        found = [precision_of(program, end.file, end.node) for end in flow.ends]
        if flow.unknown or flow.is_kept or not found or None in found:
            return False
        every = [each for each in found if each is not None]
        field = shared_buffer_dtype(every)
        is_local = field != "itself" or every[0].sources["buffer_dtype"].startswith("torch.")
        is_local |= value in [end.node for end in flow.ends]
        is_local |= field == "itself" and _is_beside(construction, flow, every[0])
        return field != UNSHOWN and is_local and all(map(_is_plain, every))


def _unread(program: Program, file: File, ends: Collection[ast.expr]) -> Iterator[ast.Call]:
    """The other objects that a file makes, under names that no code of the program has."""
    for statement in file.tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(name)], value=ast.Call() as made):
                precision = precision_of(program, file, made)
            case _:
                continue
        if made in ends or precision is None or not _is_plain(precision):
            continue
        word = rf"\b{re.escape(name)}\b"
        others = program.tree.having(word.encode()) - {str(file.path)}
        if not others and len(re.findall(word, file.text)) == 1:
            yield made


def _reads(
    program: Program, flow: Flow, passed: set[ast.AST]
) -> dict[ast.expr, tuple[File, str]] | None:
    """The reads of `buffer_dtype` among what else is read of a policy; None if something is read that FSDP2's has not."""
    found: dict[ast.expr, tuple[File, str]] = {}
    stands_for = _instead_of_buffer_dtype(program, flow)
    for carrier in flow.carriers:
        reads = read_elsewhere(program, carrier, passed)
        if reads is None:
            return None
        for file, use in reads:
            parent = file.parents[use]
            if isinstance(parent, ast.Attribute) and parent.attr == "buffer_dtype":
                # Where an older Python parses, its places in strings can be wrong.
                if not stands_for or file.source(parent) != ast.unparse(parent):
                    return None
                found[parent] = (file, f"{file.source(use)}.{stands_for}")
            elif not _is_harmless(file, use):
                return None
    return found


def _instead_of_buffer_dtype(program: Program, flow: Flow) -> str:
    """The field of all policies that has the dtype of buffers; "" if none has."""
    found = [precision_of(program, end.file, end.node) for end in flow.ends]
    field = shared_buffer_dtype([each for each in found if each is not None])
    if field in ("param_dtype", "reduce_dtype"):
        return field
    return ""


def _is_harmless(file: File, use: ast.expr) -> bool:
    """Whether a read of an option means the same to FSDP2's: its dtypes, or a print of it."""
    parent = file.parents.get(use)
    if isinstance(parent, ast.Attribute):
        return parent.attr in ("param_dtype", "reduce_dtype")
    if isinstance(parent, ast.Call) and use in parent.args:
        return last_name(parent.func) in _PRINTS
    return isinstance(parent, ast.FormattedValue)


def _is_beside(construction: Construction, flow: Flow, precision: Precision) -> bool:
    """Whether the dtype of buffers is a name that the function of the constructor has, too."""
    file = construction.context.file
    made = flow.ends[0]
    is_name = precision.sources["buffer_dtype"].isidentifier()
    return (
        is_name
        and made.file is file
        and file.function(made.node) is file.function(construction.call)
    )


def _is_plain(precision: Precision) -> bool:
    others = {"cast_root_forward_inputs", "_module_classes_to_ignore"}
    is_shown = precision.constant("cast_forward_inputs") is not ...
    return is_shown and others.isdisjoint(precision.sources)


def shared_buffer_dtype(every: Sequence[Precision]) -> str | None:
    """How the buffers' dtype is read from FSDP2's policy, whichever of some is taken: None where none casts any, UNSHOWN where
    it cannot be."""
    given = [each for each in every if each.sources]
    dtypes = [each.sources.get("buffer_dtype") for each in given]
    if not any(dtypes):
        return None
    for field in ("param_dtype", "reduce_dtype"):
        if all(each.sources.get(field) == dtype for each, dtype in zip(given, dtypes, strict=True)):
            return field
    if len({*dtypes}) == 1 and len(given) == len(every):
        return "itself"
    return UNSHOWN


def policy_edits(context: Context, made: ast.expr, rewritten: Rewritten) -> list[Edit]:
    """The edits that turn what makes a MixedPrecision, or None, into FSDP2's policy."""
    if isinstance(made, ast.Constant):
        return [context.replace(made, "MixedPrecisionPolicy()")]
    source = _in_room(context, made, policy_source(context, made, made in rewritten.casting))
    # Those of fields that FSDP2's policy does not have go with them.
    lost = Counter(comments(context.source(made))) - Counter(comments(source))
    return [context.replace(made, source)._replace(lost=tuple(lost.elements()))]


def _in_room(context: Context, made: ast.expr, source: str) -> str:
    """Code that takes an expression's place on one line, where a field less gives it room; a last comma asks for several."""
    inside = source.partition("(")[2].removesuffix(")").strip()
    if "\n" not in source or "#" in source or inside.endswith(","):
        return source
    rows = [row.strip() for row in source.splitlines()]
    joined = rows[0] + " ".join(rows[1:-1]) + rows[-1]
    file = context.file
    first, end = file.span(made)
    start = file.line_starts[made.lineno - 1]
    behind = NEWLINE.split(file.text[end:], maxsplit=1)[0]
    is_short = first - start + len(joined) + len(behind) <= context.line_length
    if is_short and rows[0].endswith("(") and rows[-1] == ")":
        return joined
    return source


def policy_source(context: Context, call: ast.expr, says_casts: bool) -> str:
    """A `MixedPrecision(...)` as `MixedPrecisionPolicy(...)`, in its own layout."""
    assert isinstance(call, ast.Call)
    precision = precision_of(context.program, context.file, call)
    assert precision is not None
    if not {"param_dtype", "reduce_dtype"} & precision.sources.keys():
        return "MixedPrecisionPolicy()"
    items = read(context.source(call))
    items.head = "MixedPrecisionPolicy" + items.head[len(context.source(call.func)) :]
    names = [*FIELDS][: len(call.args)] + [str(keyword.arg) for keyword in call.keywords]
    kept = ["param_dtype", "reduce_dtype"]
    if says_casts:
        kept.append("cast_forward_inputs")
    for name, item in list(zip(names, list(items.items), strict=True)):
        if name not in kept:
            items.drop(item)
    if len(call.args) > 1 and "param_dtype" not in precision.sources:
        items.items[0].text = "param_dtype=None"
    if "reduce_dtype" not in precision.sources and "param_dtype" in precision.sources:
        # Since torch 2.15 FSDP2 reduces in the parameters' own dtype where it is not told another.
        items.insert(1, f"reduce_dtype={precision.sources['param_dtype']}")
    if says_casts and precision.constant("cast_forward_inputs") is False:
        items.insert(len(items.items), "cast_forward_inputs=False")
    for item in (*items.items, items.bracket):
        item.lead = _TAKEN_OUT.sub("", item.lead)
    return items.code


def policy_text(context: Context, value: ast.expr, rewritten: Rewritten) -> str:
    """An argument as source, with what makes options inside of it rewritten."""
    if value not in context.file.parents:
        return ast.unparse(value)
    if value in rewritten.ends and isinstance(value, ast.Constant):
        return "MixedPrecisionPolicy()"
    inside = [node for node in ast.walk(value) if node in rewritten.ends]
    edits = [
        edit
        for node in inside
        if isinstance(node, ast.expr)
        for edit in policy_edits(context, node, rewritten)
    ]
    start, end = context.file.span(value)
    return spliced(context.file.text, edits, start, end)


def made_here(context: Context, rewritten: Rewritten) -> Iterator[ast.expr]:
    """The option objects that a file makes outside of the constructors."""
    for node, file in rewritten.ends.items():
        if file is context.file and node in file.parents:
            yield node
