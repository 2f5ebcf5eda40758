"""Whether a constructor's model is on its device already: `.to(device)` or `.cuda()` runs above it, or in all that call it."""

from __future__ import annotations

import ast

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.facts.file import File, given, last_name, root_of
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.scopes import Assigned, Parameter

# Methods that move a module, or may do anything with its parts.
_MOVING = ("to", "cpu", "cuda", "to_empty", "apply", "add_module")


def is_on_device(construction: Construction) -> bool:
    """Whether the files show that the whole model is on the device of `device_id`."""
    module = construction.module
    device = construction.value("device_id")
    file = construction.context.file
    if module is None or device is None or device not in file.parents:
        return False
    return _is_there(construction.context.program, file, module, device)


def _is_there(program: Program, file: File, model: ast.expr, device: ast.expr) -> bool:
    """Whether what an expression holds is on a device where it is read."""
    if isinstance(model, ast.Call):
        return _moves(file, model, device)
    if not isinstance(model, ast.Name):
        return False
    bindings = file.bindings(model)
    statement = file.statement(model)
    above = [each for each in file.block(statement) if each.lineno < statement.lineno]
    for each in reversed(above):
        if _is_changed(each, model.id):
            return False
        match each:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name))) as call):
                if name == model.id and last_name(call.func) in _MOVING:
                    return _moves(file, call, device)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == model.id:
                return isinstance(value, ast.Call) and _moves(file, value, device)
    others = [b for b in bindings if not _is_own(file, b, statement)]
    match others:
        case [Parameter(function=ast.FunctionDef() as function, argument=argument)]:
            return _is_given_there(program, function, argument.arg, device)
    return False


def _is_own(file: File, binding: object, statement: ast.stmt) -> bool:
    """Whether a binding is made by the statement of the constructor itself, or below it."""
    return isinstance(binding, Assigned) and binding.target.lineno >= statement.lineno


def _is_given_there(
    program: Program, function: ast.FunctionDef, name: str, device: ast.expr
) -> bool:
    """Whether all calls of a function give it a model that is on the device that they give."""
    calls = program.calls(function.name)
    for file, call in calls:
        model = given(call, function, name)
        own: ast.expr | None = device
        if isinstance(device, ast.Name):
            own = given(call, function, device.id)
        if model is None or own is None or not _is_there(program, file, model, own):
            return False
    return bool(calls)


def _moves(file: File, call: ast.Call, device: ast.expr) -> bool:
    """Whether a call moves a module to a device, which is written alike."""
    match call:
        case ast.Call(func=ast.Attribute(attr="to"), args=[where, *_]):
            return ast.unparse(where) == ast.unparse(device)
        case ast.Call(
            func=ast.Attribute(attr="to"), keywords=[ast.keyword(arg="device", value=where)]
        ):
            return ast.unparse(where) == ast.unparse(device)
        case ast.Call(func=ast.Attribute(attr="cuda"), args=[]):
            return "current_device" in ast.unparse(device)
        case ast.Call(func=ast.Attribute(attr="cuda"), args=[where]):
            return ast.unparse(where) == ast.unparse(device)
    return False


def _is_changed(statement: ast.stmt, name: str) -> bool:
    """Whether a statement may move a model, or put another module into it; a plain `model = ...` is looked at by itself."""
    is_plain = isinstance(statement, ast.Expr | ast.Assign)
    own_call = None
    if isinstance(statement, ast.Expr | ast.Assign):
        own_call = statement.value
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=own, ctx=ast.Store()) if own == name and not is_plain:
                return True
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                root = root_of(node)
                if root is not None and root.id == name:
                    return True
            case ast.Call(func=ast.Attribute(value=ast.Name(id=own), attr=method)):
                if own == name and method in _MOVING and node is not own_call:
                    return True
    return False
