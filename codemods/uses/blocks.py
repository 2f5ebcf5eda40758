"""Blocks whose contexts go: what asks for state dicts in them becomes functions, and the blocks move one step out."""

import ast
from collections.abc import Iterable, Iterator, Sequence

from fsdp_migrate.codemods.context import Context, shortened
from fsdp_migrate.codemods.edit.text import step
from fsdp_migrate.codemods.imports import spent
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.codemods.uses.contexts import Block
from fsdp_migrate.codemods.uses.once import Once, assignment, repeated, written_once
from fsdp_migrate.codemods.uses.use import (
    Use,
    imports,
    local_names,
    options_name,
    under,
    with_options,
)
from fsdp_migrate.facts.file import File
from fsdp_migrate.findings import Action

_SPENT = "Removed: only the context of a state dict used it. What the new code needs of it is written there."


def together(blocks: Iterable[Block], file: File) -> list[list[Block]]:
    """The blocks that are rewritten together: those inside of one another, and those that read one configuration."""
    groups: list[tuple[set[object], list[Block]]] = []
    for block in blocks:
        keys = _shared(block, file)
        members = [block]
        for group in [each for each in groups if each[0] & keys]:
            groups.remove(group)
            keys |= group[0]
            members = [*group[1], *members]
        groups.append((keys, members))
    return [members for _, members in groups]


def shared_options(
    context: Context, groups: Iterable[Sequence[Block]]
) -> dict[str, tuple[str, ast.stmt]]:
    """The names that options have in the whole file, by what they are, each with the statement that they change with."""
    found: dict[str, tuple[str, ast.stmt]] = {}
    for blocks in groups:
        first = _families(blocks, context.file)[0][0].statement
        for value, use in written_once(context, blocks).values.items():
            match context.file.parents[value]:
                case ast.Assign(targets=[ast.Name(id=name)]) as made:
                    if made in context.file.tree.body:
                        found.setdefault(use.options, (name, first))
    return found


def _shared(block: Block, file: File) -> set[object]:
    """What a block may share with others: `with` statements around it, and what gives its type, a variable or an attribute."""
    around = (block.statement, *file.ancestors(block.statement))
    found: set[object] = {each for each in around if isinstance(each, ast.With)}
    given = [*block.call.args[1:]]
    given += [each.value for each in block.call.keywords if each.arg != "module"]
    for value in given:
        for name in ast.walk(value):
            if not isinstance(name, ast.Name):
                continue
            variable = file.variable(name)
            if variable is not None and variable.assigned:
                found.add((variable.scope, name.id))
        if isinstance(value, ast.Attribute):
            found.add((file.enclosing_class(value), file.source(value)))
    return found


def rewritten(context: Context, blocks: Sequence[Block], rule: Rule) -> Iterator[Found]:
    """The findings for blocks that are rewritten together, the first one with all edits."""
    once = written_once(context, blocks)
    parts = [_Part(context, family, once) for family in _families(blocks, context.file)]
    gone = [node for block in blocks for node in (*block.spent, block.call)]
    left_over = spent(context, gone, {*once.names.values()})
    first = parts[0].statement

    def edits() -> list[Edit]:
        made = [edit for part in parts for edit in part.edits(context)]
        made += once.edits(context)
        made += [context.remove(each) for each in left_over]
        return made

    needed = [*once.imports(context)]
    needed += [each for part in parts for each in part.imports]
    needed += [each for block in blocks if block.own is not None for each in block.own.imports]
    removed = (*gone, *left_over, *once.removed)
    for part in parts:
        for block in part.blocks:
            node: ast.AST = block.call
            if block is part.blocks[0]:
                node = block.statement
            source = shortened(context.source(block.call))
            found = Found(rule, node, Action.REWRITE, _message(block), source)
            if block is parts[0].blocks[0]:
                yield found._replace(edits=edits, imports=tuple(needed), removed=removed)
            else:
                yield found._replace(of=first)
        for use in part.uses:
            source = shortened(context.source(use.node))
            yield Found(rule, use.node, use.action, use.message, source, of=first)
            yield from use.behind(rule, first)
    yield from once.found(rule, first)
    for statement in left_over:
        source = shortened(context.source(statement))
        yield Found(rule, statement, Action.REWRITE, _SPENT, source, of=first)


def _message(block: Block) -> str:
    if block.uses:
        return "Removed: torch's functions take the type of state dict as an option."
    if block.own is not None:
        return "Removed: state dicts of FSDP2 models always hold shards."
    return "Removed: no state dict in this block depends on the type that it sets."


def _families(blocks: Iterable[Block], file: File) -> list[list[Block]]:
    """The blocks of each outermost statement, outer ones first."""
    every = sorted(blocks, key=lambda block: block.statement.lineno)
    statements = {block.statement for block in every}
    found: dict[ast.AST, list[Block]] = {}
    for block in every:
        around = [block.statement, *file.ancestors(block.statement)]
        outermost = [each for each in around if each in statements][-1]
        found.setdefault(outermost, []).append(block)
    return list(found.values())


class _Part:
    """One outermost statement with what becomes of it.

    Attributes:
        statement: the statement.
        blocks: its contexts, and those of statements in it.
        uses: the calls of functions that are written in it.
        above: the options that they share, as a statement above it; "" if they share none.
        imports: what the functions and options need.
    """

    def __init__(self, context: Context, blocks: Sequence[Block], once: Once) -> None:
        self.blocks = blocks
        self.statement = blocks[0].statement
        call = blocks[0].call
        every = {use.node: once.of(use) for block in blocks for use in block.uses}
        uses = list(every.values())
        names = local_names(context, uses, call)
        self.imports: tuple[Import, ...] = imports(uses, names, call.func)
        self.above = ""
        if options := repeated(uses):
            name = options_name(context, call, under(names, options), uses[0].function)
            self.above = assignment(context, name, under(names, options), self.statement)
            uses = with_options(uses, options, name)
        self.uses: list[Use] = [use.named(names) for use in uses]

    def edits(self, context: Context) -> list[Edit]:
        """The edits of the statement, and of loads behind it."""
        changed = context.statement(self.statement)
        taken_out = []
        for statement in dict.fromkeys([block.statement for block in self.blocks]):
            calls = [block.call for block in self.blocks if block.statement is statement]
            if len(calls) == len(statement.items):
                if statement is self.statement:
                    changed.step_out()
                else:
                    changed.step_out(statement)
                taken_out.append(statement)
            else:
                for call in calls:
                    changed.drop(call)
        if self.above:
            changed.above(self.above)
        for use in self.uses:
            steps = sum(each in taken_out for each in context.file.ancestors(use.node))
            use.write(context, changed, moved=steps * len(step(context.file)))
        behind = [make() for use in self.uses if use.loads is not None for make in use.loads.edits]
        return [*changed.edits(), *behind]
