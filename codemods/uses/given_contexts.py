"""A variable that is given a context in one place, which a block below enters: how both go where the context does nothing.

`cm = FSDP.summon_full_params(model) if sharded else nullcontext()`, the same in a lambda, or in an `if` that gives the variable
nothing otherwise.
"""

import ast
import re
from dataclasses import dataclass

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.taken_away import drop_with_comments
from fsdp_migrate.codemods.questions import only_looks
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import last_name

# Comments of a statement that goes, which speak of why it was there.
ABOUT = re.compile(r"\bfsdp(?!_)|summon|gather|shard", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class GivenContext:
    """A variable's context.

    Attributes:
        statements: what gives it, and nothing else.
        block: the statement that enters it.
        item: its item there.
    """

    statements: tuple[ast.stmt, ...]
    block: ast.With
    item: ast.expr

    @property
    def removed(self) -> tuple[ast.AST, ...]:
        """The code that goes."""
        return (*self.statements, self.item)

    def edits(self, context: Context) -> list[Edit]:
        """The edits that take it away; the block moves one step out."""
        edits = [drop_with_comments(context.file, each, ABOUT) for each in self.statements]
        changed = context.statement(self.block)
        if len(self.block.items) == 1:
            changed.step_out()
        else:
            changed.drop(self.item)
        return [*edits, *changed.edits()]


def is_nothing(value: ast.expr) -> bool:
    """`nullcontext`, or a call of it."""
    called = value
    if isinstance(value, ast.Call):
        called = value.func
    return last_name(called) in ("nullcontext", "suppress")


def given_context(context: Context, call: ast.Call) -> GivenContext | None:
    """The variable that a call gives a context to, and the one block that enters it; None if there is more to it."""
    assign = context.file.statement(call)
    match assign:
        case ast.Assign([ast.Name() as target], value) if _is_or_nothing(value, call):
            statements = _all_that_give(context, assign, target)
        case _:
            return None
    if not all(map(context.is_alone, statements)):
        return None
    reads = _reads_behind(context, statements, target)
    if len(reads) != 1 or context.is_for_others(target.id):
        return None
    item: ast.expr = context.call_of(reads[0]) or reads[0]
    around = context.file.parents[item]
    block = context.file.parents[around]
    is_item = isinstance(around, ast.withitem) and around.optional_vars is None
    if not is_item or not isinstance(block, ast.With) or not context.is_alone(block):
        return None
    beside = context.file.block(statements[-1])
    if {block, *context.file.ancestors(block)} & {*beside}:
        return GivenContext(statements, block, item)
    return None


def _is_or_nothing(value: ast.expr, call: ast.Call) -> bool:
    """Whether a value is a call, or nothing under some test, perhaps in a lambda without arguments."""
    match value:
        case ast.Lambda(ast.arguments(posonlyargs=[], args=[], kwonlyargs=[]), body):
            return _is_or_nothing(body, call)
        case ast.IfExp(test, one, other):
            is_pair = (one is call and is_nothing(other)) or (other is call and is_nothing(one))
            return is_pair and only_looks(test)
    return value is call


def _all_that_give(context: Context, assign: ast.Assign, target: ast.Name) -> tuple[ast.stmt, ...]:
    """An assignment, with the `if` around it and the one that gives nothing otherwise."""
    branch = context.file.parents[assign]
    match branch:
        case ast.If(test, [_], [other]) if only_looks(test) and _gives_nothing(other, target):
            return (branch,)
        case ast.If(test, [_], []) if only_looks(test):
            block = context.file.block(branch)
            above = block[block.index(branch) - 1 : block.index(branch)]
            if above and _gives_nothing(above[0], target):
                return (above[0], branch)
    return (assign,)


def _gives_nothing(statement: ast.stmt, target: ast.Name) -> bool:
    match statement:
        case ast.Assign([ast.Name(name)], value):
            return name == target.id and is_nothing(value)
    return False


def _reads_behind(
    context: Context, statements: tuple[ast.stmt, ...], target: ast.Name
) -> list[ast.Name]:
    """Where the variable is read before something else gives it a value."""
    first = statements[0].lineno
    last = statements[-1].end_lineno or statements[-1].lineno
    variable = context.file.variable(target)
    if variable is not None:
        assigned = variable.assigned
    else:
        assigned = []
    others = [each.target.lineno for each in assigned if each.target.lineno > last]
    end = min(others, default=None)
    reads = [each for each in context.file.reads(target) if each.lineno >= first]
    return [each for each in reads if end is None or each.lineno < end]
