"""The load behind `states = FSDP.optim_state_dict_to_load(...)`: torch's function loads the states itself."""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import comments_between, indentation, newline, step
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.codemods.uses.options import is_typed
from fsdp_migrate.facts.names import OPTIMIZER_STATES

_REMOVED = "Removed: `set_optimizer_state_dict` loads the states itself, so there is no result to load or to test."
_MOVED = "Moved into an `else`: in the branch above, `set_optimizer_state_dict` loads the states already."


@dataclass(frozen=True)
class Loads:
    """What becomes of the code behind a statement that makes states to load.

    Attributes:
        edits: they take the load away, or move it to the branch that still needs it.
        changed: the statements that they change, with what is said of each.
        assigned: the name that is given the optimizer's own states, where other code goes on with them; else "".
    """

    edits: tuple[Callable[[], Edit], ...] = ()
    changed: tuple[tuple[ast.stmt, str], ...] = ()
    assigned: str = ""


def is_load(statement: ast.AST, optimizer: ast.expr, state: ast.expr) -> bool:
    """Whether a statement is `optimizer.load_state_dict(state)`."""
    match statement:
        case ast.Expr(ast.Call(ast.Attribute(owner, "load_state_dict"), [given], [])):
            return given is state and ast.unparse(owner) == ast.unparse(optimizer)
    return False


def behind(context: Context, made: ast.Assign, name: ast.Name, optimizer: ast.expr) -> Loads:
    """What becomes of the code that goes on with states.

    Args:
        made: the statement that makes them.
        name: the name that it gives them.
        optimizer: the one that they are for.
    """
    file = context.file
    reads = _reads_behind(context, made, name)
    checks = [file.statement(read) for read in reads if _is_check(file.statement(read), read)]
    others = [read for read in reads if file.statement(read) not in checks]
    goes_on = Loads(assigned=name.id)
    if len(others) != 1 or not is_load(file.statement(others[0]), optimizer, others[0]):
        return goes_on
    load = file.statement(others[0])
    last = _beside(context, made, name, load)
    if last is None or not all(map(context.is_alone, (*checks, load))):
        return goes_on
    block = file.block(last)
    if load in block[block.index(last) + 1 :]:
        gone = (*checks, load)
        return Loads(
            tuple(partial(context.remove, each) for each in gone),
            tuple((each, _REMOVED) for each in gone),
        )
    around = file.parents[last]
    if not checks and isinstance(around, ast.If) and _may_move(context, around, last, load):
        return Loads((partial(_to_the_other_branch, context, around, load),), ((load, _MOVED),))
    return goes_on


def _reads_behind(context: Context, made: ast.stmt, name: ast.Name) -> list[ast.Name]:
    """Where the name is read below a statement, but for branches that are run in its place."""
    elsewhere: set[ast.AST] = set()
    child: ast.AST = made
    for around in context.file.ancestors(made):
        if isinstance(around, ast.If) and child in around.body:
            for part in around.orelse:
                elsewhere.update(ast.walk(part))
        child = around
    end = made.end_lineno or made.lineno
    reads = context.file.reads(name)
    return [read for read in reads if read.lineno > end and read not in elsewhere]


def _beside(context: Context, made: ast.stmt, name: ast.Name, load: ast.stmt) -> ast.stmt | None:
    """The outermost statement that makes the states on every way to its end: one beside the load, or in a branch above it."""
    statement = made
    while load not in context.file.block(statement):
        around = context.file.parents[statement]
        if isinstance(around, ast.With) and statement in around.body:
            statement = around
        elif isinstance(around, ast.If):
            if not _both_make(around, name):
                return statement
            statement = around
        else:
            return None
    return statement


def _is_check(statement: ast.stmt, read: ast.Name) -> bool:
    """Whether a statement is `assert states is not None`, which nothing needs once the states have no name."""
    match statement:
        case ast.Assert(ast.Compare(left, [ast.IsNot()], [ast.Constant(None)])):
            return left is read
    return False


def _both_make(branches: ast.If, name: ast.Name) -> bool:
    """Whether both branches end with states that FSDP1's functions make."""
    for branch in (branches.body, branches.orelse):
        match branch[-1:]:
            case [ast.Assign([ast.Name(target)], ast.Call(ast.Attribute(_, function)))]:
                if target != name.id or function not in OPTIMIZER_STATES:
                    return False
            case _:
                return False
    return True


def _may_move(context: Context, around: ast.If, last: ast.stmt, load: ast.stmt) -> bool:
    """Whether a load that follows an `if` directly can be moved into its `else`, as the branch above has loaded already."""
    file = context.file
    block = file.block(around)
    is_next = load in block and block.index(load) == block.index(around) + 1
    if not is_next or around.body[-1] is not last or _is_elif(context, around):
        return False
    if around.orelse and _is_elif(context, around.orelse[0]):
        return False
    between = comments_between(file, file.lines(around)[1], file.span(load)[0])
    return load.lineno == load.end_lineno and not between and not is_typed(file, load)


def _is_elif(context: Context, statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and context.source(statement).startswith("elif")


def _to_the_other_branch(context: Context, around: ast.If, load: ast.stmt) -> Edit:
    file = context.file
    margin = indentation(file, around)
    end = newline(file)
    code = f"{margin}{step(file)}{context.source(load)}"
    if not around.orelse:
        code = f"{margin}else:{end}{code}"
    return Edit(file.lines(around)[1], file.span(load)[1], code)
