"""What is known at a place in the source: which tests hold there, and what value a name was given last.

A test holds inside of its `if`, and below an `if` whose body leaves the block.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.codemods.constructor.origin import may_be_module
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.names import CLASS, RUNTIME, TORCH
from fsdp_migrate.facts.scopes import Assigned, Parameter

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def asks_first(file: File, attribute: ast.Attribute) -> bool:
    """Whether `model.module` is behind a `hasattr` of the same receiver."""
    asked = f"hasattr({ast.unparse(attribute.value)}, '{attribute.attr}')"
    return any(truth and ast.unparse(test) == asked for test, truth in _holding(file, attribute))


def is_wrapped(context: Context, model: ast.expr) -> bool | None:
    """Whether `isinstance(model, FSDP)` holds where a name is read; None if no test says it."""
    for test, truth in _holding(context.file, model):
        if not isinstance(test, ast.Call) or getattr(test.func, "id", "") != "isinstance":
            continue
        if isinstance(model, ast.Name) and ast.unparse(test.args[0]) == model.id:
            if context.references.get(test.args[1]) == CLASS:
                return truth
    return None


def was_wrapper(context: Context, attribute: ast.Attribute) -> bool | None:
    """Whether a run has read `.module` of FSDP1's wrappers at a place, or of other modules; None for both, and for neither."""
    ran = context.recorded(attribute)
    on_line = [a for a in context.file.attributes["module"] if a.lineno == attribute.lineno]
    if ran is None or not (ran.end_line or len(on_line) == 1):
        return None  # before Python 3.11 a place is a line
    return ran.facts.get("of_wrapper")


def last_value(file: File, name: ast.expr, at: ast.AST) -> ast.expr | None:
    """The value that a local name certainly has at a place: that of its last assignment, if no way to the place avoids it."""
    found = file.variable(name, at)
    if found is None or found.scope is not file.scope_of(at) or not found.assigned:
        return None
    if any(not isinstance(binding, Assigned | Parameter) for binding in found.bindings):
        return None
    last = max(found.assigned, key=lambda binding: binding.target.lineno)
    statement = file.statement(last.target)
    block = file.block(statement)
    behind = block[block.index(statement) + 1 :] if statement in block else []
    around = (file.statement(at), *file.ancestors(at))
    return None if last.path or not any(node in behind for node in around) else last.value


def are_held(context: Context) -> bool:
    """Whether a file may put a wrapped model into another module, whose class does not show the model inside."""
    for call in context.file.of(ast.Call):
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if not any(
            context.can_be_model(e) for e in given if isinstance(e, ast.Name | ast.Attribute)
        ):
            continue
        made = context.program.definition(call.func, context.file)
        if made is None:
            kept = isinstance(context.file.parents[call], ast.Assign | ast.Return)
            others = (d for d in context.dotted(call.func) if not d.startswith((TORCH, RUNTIME)))
            held = kept and any(others)
        else:
            is_class = isinstance(made.node, ast.ClassDef)
            held = is_class and may_be_module(context.program, made)
        if held:
            return True
    return False


def _holding(file: File, node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """The tests that hold at a node, and those that do not, each with which of the two."""
    child = node
    for parent in file.ancestors(node):
        if isinstance(parent, ast.If | ast.IfExp | ast.While) and child is not parent.test:
            body = _listed(parent.body)
            yield from _unchanged(parent.test, child in body, [*body, *_listed(parent.orelse)])
        if isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And):
            for value in parent.values[: parent.values.index(child)]:  # type: ignore[arg-type]
                yield from _unchanged(value, True, [])
        if isinstance(child, ast.stmt):
            block = file.block(child)
            place = block.index(child) if child in block else 0
            for above in block[:place]:
                if isinstance(above, ast.If) and isinstance(above.body[-1], _LEAVES):
                    yield from _unchanged(above.test, False, block[block.index(above) :])
        if isinstance(parent, _FUNCTIONS):
            return
        child = parent


def _listed(branch: list[ast.stmt] | ast.expr) -> Sequence[ast.AST]:
    return branch if isinstance(branch, list) else [branch]


def _unchanged(
    test: ast.expr, truth: bool, region: Sequence[ast.AST]
) -> Iterator[tuple[ast.expr, bool]]:
    """The parts of a test, if nothing in a region gives another value to a name in it."""
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    stores = (n for each in region for n in ast.walk(each) if isinstance(n, ast.Name))
    if not any(n.id in names and not isinstance(n.ctx, ast.Load) for n in stores):
        yield from _parts(test, truth)


def _parts(test: ast.expr, truth: bool) -> Iterator[tuple[ast.expr, bool]]:
    """A test without `not`, and each of several that hold, or do not, together."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _parts(test.operand, not truth)
    elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) is truth:
        for value in test.values:
            yield from _parts(value, truth)
    else:
        yield test, truth
