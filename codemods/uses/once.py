"""Options that several state dicts share, written once: under the name of FSDP1's configuration, or above a block."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.edit.text import indentation
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.codemods.uses.use import OPTIONS, Use, imports, local_names, options_code
from fsdp_migrate.findings import Action

if TYPE_CHECKING:
    from fsdp_migrate.codemods.uses.contexts import Block


@dataclass
class Once:
    """The configurations that become options, under the names that they have.

    Attributes:
        names: these names, by the expressions that read them.
        values: the calls that make the configurations, each with a use of the options that take its place.
    """

    names: dict[ast.expr, str] = field(default_factory=dict)
    values: dict[ast.Call, Use] = field(default_factory=dict)

    def of(self, use: Use) -> Use:
        """A use by the name of its configuration, where that becomes options."""
        name = None
        if use.config is not None:
            name = self.names.get(use.config)
        if name is None:
            return use
        return replace(use, options=name)

    @property
    def removed(self) -> list[ast.AST]:
        """FSDP1's code that goes."""
        return [value.func for value in self.values]

    def edits(self, context: Context) -> list[Edit]:
        """The edits that write the options."""
        return [
            _edit(context, use.named(local_names(context, [use], value)).options, value)
            for value, use in self.values.items()
        ]

    def imports(self, context: Context) -> list[Import]:
        """What the options need."""
        needed: list[Import] = []
        for value, use in self.values.items():
            names = local_names(context, [use], value)
            needed += [i for i in imports([use], names, value.func) if OPTIONS in i.name]
        return needed

    def found(self, rule: Rule, of: ast.AST) -> Iterator[Found]:
        """The findings at the configurations, which change with the blocks that read them."""
        message = f"Replaced by `{OPTIONS}`, which torch's functions for state dicts take."
        for value in self.values:
            yield Found(rule, value, Action.REWRITE, message, of=of)


def written_once(context: Context, blocks: Iterable["Block"]) -> Once:
    """The configurations that only blocks read which all take the same options from them."""
    once = Once()
    readers: dict[ast.expr, Block] = {}
    uses: dict[ast.expr, list[Use]] = {}
    for block in blocks:
        for name, position in (("state_dict_config", 2), ("optim_state_dict_config", 3)):
            config = keyword(block.call, name, position)
            if config is not None:
                readers[config] = block
        for use in block.uses:
            if use.config is not None:
                uses.setdefault(use.config, []).append(use)
    for config in uses:
        if config in once.names:
            continue
        reads, made = _reads(context, config)
        shared = [use for read in reads for use in uses.get(read, ())]
        if not made or not {*reads} <= {*readers}:
            continue
        if len({use.options for use in shared}) == 1 and _is_the_same_above(shared[0].options):
            once.names |= dict.fromkeys(reads, context.source(config))
            once.values |= dict.fromkeys(made, shared[0])
    return once


def _reads(context: Context, config: ast.expr) -> tuple[Sequence[ast.expr], Sequence[ast.Call]]:
    """What reads the variable or attribute of a configuration, and the calls that give it its configurations."""
    match config:
        case ast.Name():
            return context.file.reads(config), _made(context, config)
        case ast.Attribute():
            return _stored(context, config)
    return (), ()


def _made(context: Context, config: ast.Name) -> list[ast.Call]:
    """The calls that give a name its configurations, in assignments that no other file reads; nothing if it has others."""
    variable = context.file.variable(config)
    if variable is None or len(variable.bindings) != len(variable.assigned):
        return []
    made = []
    for assigned in variable.assigned:
        is_alone = isinstance(context.removable(assigned), ast.Assign)
        call = _configuration(context, assigned.value)
        if not is_alone or call is None:
            return []
        made.append(call)
    return made


def _configuration(context: Context, value: ast.expr | None) -> ast.Call | None:
    """The expression, if it is a call that makes a configuration."""
    match value:
        case ast.Call(func=function):
            if (context.fsdp1(function) or "").endswith("StateDictConfig"):
                return value
    return None


def _stored(context: Context, config: ast.Attribute) -> tuple[list[ast.Attribute], list[ast.Call]]:
    """The reads of an attribute of `self`, and the calls that give it its configurations; nothing if other code may."""
    file = context.file
    own = frozenset((str(file.path),))
    word = rf"\b{config.attr}\b"
    uses = file.attributes.get(config.attr, ())
    is_here = context.program.tree.having(word.encode()) <= own
    if not is_here or len(re.findall(word, file.text)) != len(uses):
        return [], []
    reads: list[ast.Attribute] = []
    made: list[ast.Call] = []
    for use in uses:
        if context.source(use) != context.source(config):
            return [], []
        match file.parents[use]:
            case _ if isinstance(use.ctx, ast.Load):
                reads.append(use)
            case ast.Assign(targets=[_], value=value):
                call = _configuration(context, value)
                if call is None:
                    return [], []
                made.append(call)
            case _:
                return [], []
    return reads, made


def _is_the_same_above(options: str) -> bool:
    """Whether options mean the same where the configuration is made: its flags do, a type may be known later."""
    return "full_state_dict=True" in options or (bool(options) and "full_state_dict" not in options)


def repeated(uses: Iterable[Use]) -> str:
    """The options that a block writes out more than once; "" if there are none."""
    counts = Counter([use.options for use in uses if use.options.startswith(f"{OPTIONS}(")])
    code, count = next(iter(counts.most_common(1)), ("", 0))
    if count > 1:
        return code
    return ""


def assignment(context: Context, name: str, code: str, block: ast.stmt) -> str:
    """The statement above a block that gives options a name."""
    room = context.line_length - len(indentation(context.file, block)) - len(f"{name} = ")
    return f"{name} = {options_code(context, code, room)}"


def _edit(context: Context, code: str, value: ast.Call) -> Edit:
    file = context.file
    indent = indentation(file, file.statement(value))
    room = context.line_length - (file.span(value)[0] - file.line_starts[value.lineno - 1])
    return context.replace(value, options_code(context, code, room).replace("\n", f"\n{indent}"))
