"""`model.no_sync()` in torch's form: `set_requires_gradient_sync` where a block shows when, else a function of one's own."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.codemods.conditions import negated
from fsdp_migrate.codemods.context import Context, shortened
from fsdp_migrate.codemods.edit import layout
from fsdp_migrate.codemods.edit.text import indentation, step
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.codemods.uses import own
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.facts.program import Program
from fsdp_migrate.findings import Action, Severity

RULE = Rule("FSDP311", "no-sync", Severity.RAISES)

_SETS = "Replaced by `set_requires_gradient_sync`, whose setting remains in effect until it is called again."
_OWN = "Replaced by `no_sync(model)`, a function that is added to this file."
_LEAVES = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom, ast.Raise)
_DDP = re.compile(r"DistributedDataParallel\(|\bDDP\(")


@dataclass(frozen=True, eq=False)
class Manager:
    """Where a model's `no_sync` is the context of a block.

    Attributes:
        block: the `with` statement.
        item: its context manager.
        assign: the statement that gave a variable the context, if there is one.
        synchronizes: when gradients are reduced in the block, as source; "" for never.
    """

    block: ast.With
    item: ast.expr
    assign: ast.Assign | None
    synchronizes: str


def shares_code_with_ddp(context: Context) -> bool:
    """Whether a program of this file wraps models by DistributedDataParallel as well, for which the same lines may run."""
    return context.program.once(_wraps_by_ddp, context.file.path)


def _wraps_by_ddp(program: Program, path: Path) -> bool:
    return any(_DDP.search(program.reach.text(each)) for each in program.reach.of(path))


def find(context: Context, attribute: ast.Attribute) -> Iterator[Found]:
    """What a use of a model's `no_sync` becomes."""
    manager = _manager(context, attribute)
    if manager is not None and _may_set(context, manager):
        yield Found(
            RULE,
            manager.block,
            Action.REWRITE,
            _SETS,
            shortened(context.source(attribute)),
            edits=lambda: _set(context, attribute, manager),
            removed=_gone(manager),
        )
        if manager.assign is not None:
            yield Found(RULE, manager.assign, Action.REWRITE, _SETS)
        return
    code = own.NO_SYNC_OR_DDP if shares_code_with_ddp(context) else own.NO_SYNC
    if context.file.scope_of(attribute).lookup("no_sync") is not None:
        message = (
            "An FSDP2 model has no `no_sync`. Use `model.set_requires_gradient_sync(False)` while accumulating gradients, "
            "and `True` for the last batch."
        )
        yield Found(RULE, attribute, Action.MANUAL, message)
        return
    call, model = context.call_of(attribute), context.source(attribute.value)
    new = f"no_sync({model})" if call is not None else f"partial(no_sync, {model})"
    yield Found(
        RULE,
        attribute,
        Action.REWRITE,
        _OWN,
        edits=lambda: [context.replace(call or attribute, new)],
        imports=() if call is not None else (Import("functools", "partial"),),
    )
    yield from own.define(context, RULE, code, attribute)


def _manager(context: Context, attribute: ast.Attribute) -> Manager | None:
    file = context.file
    value: ast.expr = context.call_of(attribute) or attribute
    choice = file.parents[value]
    synchronizes = ""
    if isinstance(choice, ast.IfExp) and value is not choice.test:
        other = choice.orelse if value is choice.body else choice.body
        if not _is_nothing(other):
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
        return (
            Manager(block, value, None, synchronizes)
            if isinstance(block, ast.With) and is_called
            else None
        )
    if isinstance(around, ast.Assign) and len(around.targets) == 1 and synchronizes:
        return _by_variable(context, around, synchronizes)
    return None


def _is_nothing(value: ast.expr) -> bool:
    """`nullcontext`, or a call of it."""
    return last_name(value.func if isinstance(value, ast.Call) else value) in (
        "nullcontext",
        "suppress",
    )


def _by_variable(context: Context, assign: ast.Assign, synchronizes: str) -> Manager | None:
    """The block below whose context is a variable that nothing else reads."""
    file, target = context.file, assign.targets[0]
    if not isinstance(target, ast.Name) or len(file.bindings(target)) != 1:
        return None
    reads = file.reads(target)
    if len(reads) != 1:
        return None
    item: ast.expr = context.call_of(reads[0]) or reads[0]
    around = file.parents[item]
    if not isinstance(around, ast.withitem) or around.optional_vars is not None:
        return None
    block = file.parents[around]
    is_here = isinstance(block, ast.With) and block in file.block(assign)
    return Manager(block, item, assign, synchronizes) if is_here else None  # type: ignore[arg-type]


def _may_set(context: Context, manager: Manager) -> bool:
    """Whether a call in front of the block does the same as its context: FSDP1's ends with the block."""
    if shares_code_with_ddp(context) or not context.is_alone(manager.block):
        return False
    others = [each for each in manager.block.items if "no_sync" in ast.unparse(each.context_expr)]
    if len(others) > 1:
        return False
    inside = {node for part in manager.block.body for node in ast.walk(part)}
    if not manager.synchronizes:
        return not any(isinstance(node, _LEAVES) for node in inside)
    around: ast.AST = context.file.function(manager.block) or context.file.tree
    calls = (node for node in ast.walk(around) if isinstance(node, ast.Call) and node not in inside)
    return not any("backward" in last_name(call.func) for call in calls)


def _gone(manager: Manager) -> tuple[ast.AST, ...]:
    return (manager.item,) if manager.assign is None else (manager.item, manager.assign.value)


def _set(context: Context, attribute: ast.Attribute, manager: Manager) -> list[Edit]:
    model = context.source(attribute.value)
    indent = len(indentation(context.file, manager.block))
    room = context.line_length - indent
    line = layout.call(
        f"{model}.set_requires_gradient_sync",
        [manager.synchronizes or "False"],
        room=room,
        line=room,
        step=step(context.file),
    )
    block, edits = context.statement(manager.block), list[Edit]()
    if len(manager.block.items) == 1:
        block.step_out()
    else:
        block.drop(manager.item)
    if manager.assign is not None:
        assign = context.statement(manager.assign)
        assign.instead(line)
        edits += assign.edits()
    else:
        block.above(line)
    if not manager.synchronizes:
        block.below(f"{model}.set_requires_gradient_sync(True)")
    return [*block.edits(), *edits]
