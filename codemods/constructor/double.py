"""A wrapper around a wrapper: FSDP1 took `FSDP(FSDP(model))`, and `fully_shard` takes a module once.

The outer wrapper holds no parameters, which are the inner one's, and nothing is left of its arguments: its `mixed_precision`
cast the inputs to what the inner one computes in, or that raised an error. Training is the same without it, bit by bit.
"""

import ast

from fsdp_migrate.codemods.constructor.construction import DIRECT, WRAP, Construction
from fsdp_migrate.codemods.constructor.outcome import Form
from fsdp_migrate.codemods.constructor.remarks import remarks
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import indentation, line_start, newline
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import values_given
from fsdp_migrate.facts.names import CLASS

_GONE = "Removed: the module is sharded already, and `fully_shard` accepts a module only once."
_NOTHING = "Removed: this wrapper contains only another wrapper, and no parameters of its own."


def wrapped_by(construction: Construction) -> Construction | None:
    """The construction whose result a constructor wraps again; None where the file does not show one."""
    context = construction.context
    module = construction.module
    if construction.kind != DIRECT or module is None:
        return None
    if isinstance(module, ast.Call):
        inner = _construction(context, module)
        if inner is None:
            return None
        return wrapped_by(inner) or inner
    if not isinstance(module, ast.Name | ast.Attribute):
        return None
    made = _made_above(context, construction.call, module)
    if made is None:
        return None
    return _construction(context, made)


def form_of(construction: Construction) -> Form:
    """What becomes of the outer one."""
    call = construction.call
    module = construction.module
    assert module is not None
    names = [each.name for each in construction.arguments if each.name != "module"]
    # Not the values of a dictionary that is unpacked, which stays.
    given = [value for value in values_given(call) if value is not module]
    return Form(
        _GONE,
        lambda: _edits(construction, module),
        (),
        (call.func, *given),
        dict.fromkeys(names, _NOTHING),
        in_words=True,
    )


def outermost(context: Context, call: ast.Call) -> ast.Call:
    """A constructor with those around it that wrap its result again."""
    around = context.file.parents[call]
    if isinstance(around, ast.keyword) and around.arg == "module":
        around = context.file.parents[around]
    if not isinstance(around, ast.Call) or call is around.func:
        return call
    outer = _construction(context, around)
    if outer is None or outer.kind != DIRECT or outer.module is not call:
        return call
    return outermost(context, around)


def _construction(context: Context, call: ast.Call) -> Construction | None:
    kind = {CLASS: DIRECT, "wrap": WRAP}.get(context.references.get(call.func, ""))
    if kind is None:
        return None
    return Construction(context, call, kind)


def _made_above(context: Context, call: ast.Call, module: ast.expr) -> ast.Call | None:
    """The call that gave a variable its value in the same block, if that is certain."""
    file = context.file
    name = ast.unparse(module)
    statement = file.statement(call)
    block = file.block(statement)
    if statement not in block:
        return None
    for above in reversed(block[: block.index(statement)]):
        match above:
            case ast.Assign(targets=[target], value=ast.Call() as made) if (
                ast.unparse(target) == name
            ):
                return made
        if any(_binds(node, name) for node in ast.walk(above)):
            return None
    return None


def _binds(node: ast.AST, name: str) -> bool:
    """Whether a node gives a variable, or the object that it is an attribute of, another value."""
    if not isinstance(node, ast.Name | ast.Attribute) or isinstance(node.ctx, ast.Load):
        return False
    return f"{name}.".startswith(f"{ast.unparse(node)}.")


def _edits(construction: Construction, module: ast.expr) -> list[Edit]:
    """The edits that take the outer call away; one around the inner call goes with the inner one's statement."""
    context = construction.context
    if isinstance(module, ast.Call):
        return []
    statement = context.file.statement(construction.call)
    call = outermost(context, construction.call)
    match statement:
        case ast.Expr():
            return [context.remove_or_pass(statement)]
        case ast.Assign(targets=[target], value=value) if value is call:
            if ast.unparse(target) == ast.unparse(module):
                return [context.remove_or_pass(statement)]
    code = context.source(module)
    kept, gone = remarks(construction, code, call)
    above = line_start(context.file, statement)
    indent = indentation(context.file, statement)
    lines = [Edit(above, above, indent + each + newline(context.file)) for each in kept]
    return [*lines, Edit(*context.file.span(call), code, gone)]
