"""`model.no_sync()` in torch's form: `set_requires_gradient_sync` where a block shows when, else a function of one's own."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

from fsdp_migrate.codemods.conditions import negated
from fsdp_migrate.codemods.context import Context, shortened
from fsdp_migrate.codemods.edit import layout
from fsdp_migrate.codemods.edit.text import indentation, step
from fsdp_migrate.codemods.questions import only_looks
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.codemods.uses import own
from fsdp_migrate.codemods.uses.given_contexts import is_nothing
from fsdp_migrate.codemods.uses.guards import is_sharded, says_sharded
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.nodes import any_is
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.scopes import Assigned, Binding
from fsdp_migrate.findings import Action, Severity

RULE = Rule("FSDP311", "no-sync", Severity.RAISES)

_SETS = "Replaced by `set_requires_gradient_sync`, whose setting remains in effect until it is called again."
_OWN = "Replaced by `no_sync(model)`, a function that is added to this file."
_LEAVES = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom, ast.Raise)
_OF_DDP = ("DistributedDataParallel", "DDP")
_DDP = re.compile(r"DistributedDataParallel\(|\bDDP\(")


@dataclass(frozen=True, eq=False)
class Manager:
    """Where a model's `no_sync` is the context of a block.

    Attributes:
        block: the `with` statement.
        item: its context manager.
        assign: the statement that gave a variable the context, if there is one.
        synchronizes: when gradients are reduced in the block, as source; "" for never.
        branch: the `if` around that statement, where another one gave the variable a context that does nothing.
        nothing: this other statement.
        guards: the parts of the test of the branch that say whether the model is sharded.
    """

    block: ast.With
    item: ast.expr
    assign: ast.Assign | None
    synchronizes: str
    branch: ast.If | None = None
    nothing: ast.Assign | None = None
    guards: tuple[ast.expr, ...] = ()


def shares_code_with_ddp(context: Context) -> bool:
    """Whether the same lines may run for a model of DistributedDataParallel: a program of this file wraps models by it, or
    the file tests for its class."""
    return _tests_for_ddp(context.file) or context.program.once(_wraps_by_ddp, context.file.path)


def _tests_for_ddp(file: File) -> bool:
    for call in file.calls.get("isinstance", ()):
        if len(call.args) == 2 and {*_OF_DDP} & {*map(last_name, ast.walk(call.args[1]))}:
            return True
    return False


def _wraps_by_ddp(program: Program, path: Path) -> bool:
    return any(_DDP.search(program.reach.text(each)) for each in program.reach.of(path))


def find(context: Context, attribute: ast.Attribute) -> Iterator[Found]:
    """What a use of a model's `no_sync` becomes."""
    manager = _manager(context, attribute)
    if manager is not None and _may_set(context, manager, attribute.value):
        yield Found(
            RULE,
            manager.block,
            Action.REWRITE,
            _SETS,
            shortened(context.source(attribute)),
            edits=lambda: _set(context, attribute, manager),
            removed=_gone(manager),
        )
        for statement in (manager.assign, manager.branch, manager.nothing):
            if statement is not None:
                yield Found(RULE, statement, Action.REWRITE, _SETS)
        return
    code = own.NO_SYNC
    if shares_code_with_ddp(context) and not is_sharded(context, attribute, attribute.value):
        code = own.NO_SYNC_OR_DDP
    if context.file.scope_of(attribute).lookup("no_sync") is not None:
        message = (
            "An FSDP2 model has no `no_sync`. Use `model.set_requires_gradient_sync(False)` while accumulating gradients, "
            "and `True` for the last batch."
        )
        yield Found(RULE, attribute, Action.MANUAL, message)
        return
    call = context.call_of(attribute)
    model = context.source(attribute.value)
    new = f"no_sync({model})"
    imports: tuple[Import, ...] = ()
    if call is None:
        new = f"partial(no_sync, {model})"
        imports = (Import("functools", "partial"),)
    yield Found(
        RULE,
        attribute,
        Action.REWRITE,
        _OWN,
        edits=lambda: [context.replace(call or attribute, new)],
        imports=imports,
    )
    yield from own.define(context, RULE, code, attribute)


def _manager(context: Context, attribute: ast.Attribute) -> Manager | None:
    file = context.file
    value: ast.expr = context.call_of(attribute) or attribute
    choice = file.parents[value]
    synchronizes = ""
    if isinstance(choice, ast.IfExp) and value is not choice.test:
        if value is choice.body:
            other = choice.orelse
        else:
            other = choice.body
        if not is_nothing(other):
            return None
        test = choice.test
        synchronizes = context.source(test)
        if value is choice.body:
            synchronizes = negated(test, context.source)
        value = choice
    around = file.parents[value]
    if isinstance(around, ast.withitem) and around.optional_vars is None:
        block = file.parents[around]
        is_called = context.call_of(attribute) is not None
        if isinstance(block, ast.With) and is_called:
            return Manager(block, value, None, synchronizes)
        return None
    if isinstance(around, ast.Assign) and len(around.targets) == 1:
        if synchronizes:
            return _by_variable(context, around, synchronizes)
        return _by_branch(context, around, attribute.value)
    return None


def _by_variable(context: Context, assign: ast.Assign, synchronizes: str) -> Manager | None:
    """The block below whose context is a variable that nothing else reads."""
    file = context.file
    target = assign.targets[0]
    if not isinstance(target, ast.Name) or len(file.bindings(target)) != 1:
        return None
    found = _only_block(context, target)
    is_here = found is not None and found[0] in file.block(assign)
    if found is not None and is_here:
        return Manager(*found, assign, synchronizes)
    return None


def _only_block(context: Context, target: ast.Name) -> tuple[ast.With, ast.expr] | None:
    """The block whose context a variable is, and the item that says so; None if anything else reads the variable."""
    reads = context.file.reads(target)
    if len(reads) != 1:
        return None
    item: ast.expr = context.call_of(reads[0]) or reads[0]
    around = context.file.parents[item]
    if not isinstance(around, ast.withitem) or around.optional_vars is not None:
        return None
    block = context.file.parents[around]
    if isinstance(block, ast.With):
        return (block, item)
    return None


def _by_branch(context: Context, assign: ast.Assign, model: ast.expr) -> Manager | None:
    """The block below whose context a branch decides: `cm = nullcontext`, `if sharded and not last: cm = model.no_sync`."""
    file = context.file
    branch = context.file.parents[assign]
    match branch, assign.targets:
        case ast.If(test, [_], []), [ast.Name() as target]:
            found = _only_block(context, target)
        case _:
            return None
    others = [each for each in file.bindings(target) if not _is_made_by(each, assign)]
    if found is None or len(others) != 1 or not isinstance(others[0], Assigned):
        return None
    nothing = file.statement(others[0].target)
    statements = file.block(branch)
    if not isinstance(nothing, ast.Assign) or not is_nothing(nothing.value):
        return None
    places = [statements.index(e) for e in (nothing, branch, found[0]) if e in statements]
    if len(places) != 3 or places != sorted(places) or context.removable(others[0]) is None:
        return None
    guards, conditions = _parts(context, test, model)
    if not conditions or not context.is_alone(branch):
        return None
    rest = conditions[0]
    if len(conditions) > 1:
        rest = ast.BoolOp(ast.And(), conditions)
    synchronizes = negated(rest, context.source)
    return Manager(*found, assign, synchronizes, branch, nothing, tuple(guards))


def _is_made_by(binding: Binding, assign: ast.Assign) -> bool:
    return isinstance(binding, Assigned) and binding.target is assign.targets[0]


def _parts(
    context: Context, test: ast.expr, model: ast.expr
) -> tuple[list[ast.expr], list[ast.expr]]:
    """The first parts of a test, which say that the model is sharded, and the others."""
    parts = [test]
    match test:
        case ast.BoolOp(ast.And(), values):
            parts = values
    conditions = [*dropwhile(lambda part: says_sharded(context, part, model), parts)]
    return parts[: len(parts) - len(conditions)], conditions


def _may_set(context: Context, manager: Manager, model: ast.expr) -> bool:
    """Whether a call in front of the block does the same as its context: FSDP1's ends with the block."""
    is_known = bool(manager.guards) or is_sharded(context, manager.block, model)
    if shares_code_with_ddp(context) and not is_known:
        return False
    if not context.is_alone(manager.block):
        return False
    others = [each for each in manager.block.items if "no_sync" in ast.unparse(each.context_expr)]
    if len(others) > 1:
        return False
    inside = {node for part in manager.block.body for node in ast.walk(part)}
    if not manager.synchronizes:
        return not any_is(inside, _LEAVES)
    around: ast.AST = context.file.function(manager.block) or context.file.tree
    instead = _run_instead(context, manager.block, around)
    calls = [
        node
        for node in ast.walk(around)
        if isinstance(node, ast.Call) and node not in inside and node not in instead
    ]
    return not any("backward" in last_name(call.func) for call in calls)


def _run_instead(context: Context, block: ast.With, around: ast.AST) -> set[ast.AST]:
    """The code that runs where a block does not: in other branches of tests that stay what they are in one call."""
    stores = {n.id for n in ast.walk(around) if isinstance(n, ast.Name) and _is_stored(n)}
    found: set[ast.AST] = set()
    child: ast.AST = block
    for branches in context.file.ancestors(block):
        if branches is around:
            break
        if isinstance(branches, ast.If) and child in branches.body + branches.orelse:
            names = {n.id for n in ast.walk(branches.test) if isinstance(n, ast.Name)}
            is_constant = only_looks(branches.test) and not names & stores
            other = branches.body
            if child in branches.body:
                other = branches.orelse
            if is_constant:
                for part in other:
                    found.update(ast.walk(part))
        child = branches
    return found


def _is_stored(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Load)


def _gone(manager: Manager) -> tuple[ast.AST, ...]:
    values = [each.value for each in (manager.assign, manager.nothing) if each is not None]
    return (manager.item, *values)


def _set(context: Context, attribute: ast.Attribute, manager: Manager) -> list[Edit]:
    """The edits that put the call in front of the block, in the branch that decides, or in the place of an assignment."""
    model = context.source(attribute.value)
    at: ast.stmt = manager.assign or manager.block
    if manager.branch is not None and not manager.guards:
        at = manager.branch
    room = context.line_length - len(indentation(context.file, at))
    line = layout.call(
        f"{model}.set_requires_gradient_sync",
        [manager.synchronizes or "False"],
        room=room,
        line=room,
        step=step(context.file),
    )
    block = context.statement(manager.block)
    edits = list[Edit]()
    if len(manager.block.items) == 1:
        block.step_out()
    else:
        block.drop(manager.item)
    if at is manager.block:
        block.above(line)
    else:
        changed = context.statement(at)
        changed.instead(line)
        edits += changed.edits()
    if manager.branch is not None and manager.guards:
        edits += _without_conditions(context, manager.branch, manager.guards)
    if manager.nothing is not None:
        edits.append(context.remove(manager.nothing))
    if not manager.synchronizes:
        block.below(f"{model}.set_requires_gradient_sync(True)")
    return [*block.edits(), *edits]


def _without_conditions(
    context: Context, branch: ast.If, guards: Sequence[ast.expr]
) -> Sequence[Edit]:
    """The edits that leave of a test what says that the model is sharded."""
    if guards == (branch.test,):
        return []
    names = [f"_guard{number}" for number in range(len(guards))]
    changed = context.statement(branch)
    changed.replace(branch.test, " and ".join(names), **dict(zip(names, guards, strict=True)))
    return changed.edits()
