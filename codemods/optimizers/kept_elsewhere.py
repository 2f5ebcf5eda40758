"""Optimizers that are older than the sharding of their model, where names alone do not say so.

They were built in another method, by the function that built the model, or of models that a loop, a lambda or a container
gives on, so that the name that is sharded is not the name whose parameters were taken.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.optimizers.kept_parameters import (
    TAKING,
    Kept,
    is_optimizer_name,
    kept_from,
    unchained,
)
from fsdp_migrate.index.module import Assigned, Module, Opaque, Parameter
from fsdp_migrate.index.order import after
from fsdp_migrate.index.project import Definition


def kept_by_methods(context: Context, call: ast.Call, model: ast.expr) -> Iterator[Kept]:
    """`self.model` wrapped in one method, its parameters kept in one that runs first: `__init__`, or one called above."""
    module = context.module
    owner = module.enclosing_class(call)
    if owner is None:
        return
    method = module.enclosing_function(call)
    names = [ast.dump(unchained(model))]
    classes = _with_bases(context, owner)
    for inner in module.calls:
        around = module.enclosing_function(inner)
        name = getattr(around, "name", "")
        if around is None or around is method or module.enclosing_class(inner) not in classes:
            continue
        if name == "__init__":
            if not _is_wrapped_first(module, method, around, inner):
                yield from kept_from(context, inner, names)
        elif _runs_first(module, around, method, call):
            yield from kept_from(context, inner, names)


def _with_bases(context: Context, cls: ast.ClassDef) -> list[ast.ClassDef]:
    """A class and its base classes in the same file."""
    found = [cls]
    for one in found:
        for base in context.project.bases(Definition(context.module, one)):
            node = getattr(base, "node", None)
            if (
                isinstance(node, ast.ClassDef)
                and getattr(base, "module", None) is context.module
                and node not in found
            ):
                found.append(node)
    return found


def _is_wrapped_first(
    module: Module, method: ast.AST | None, init: ast.AST, inner: ast.Call
) -> bool:
    """Whether `__init__` calls the method that shards above a call of its own, or is what shards."""
    names = _methods_that_run(module, getattr(method, "name", ""))
    return "__init__" in names[:1] or any(
        module.enclosing_function(call) is init and after(inner, call)
        for name in names
        for call in _calls_of(module, name)
    )


def _methods_that_run(module: Module, name: str) -> list[str]:
    """A method, and the methods that call it, or call one that does."""
    names = [name]
    for one in names:
        for call in _calls_of(module, one):
            around = getattr(module.enclosing_function(call), "name", "")
            if around and around != "__init__" and around not in names:
                names.append(around)
    return names


def _runs_first(
    module: Module, function: ast.AST, method: ast.AST | None, sharding: ast.Call
) -> bool:
    """Whether a method is called above the constructor, or above a call of the method that the constructor is in."""
    own = ast.dump(ast.Name("self", ast.Load()))
    spots = [(sharding, own)]
    spots += [(call, _receiver(call)) for call in _calls_of(module, getattr(method, "name", ""))]
    return any(
        _receiver(call) == receiver
        and module.enclosing_function(call) is module.enclosing_function(spot)
        and after(spot, call)
        for call in _calls_of(module, getattr(function, "name", ""))
        for spot, receiver in spots
    )


def _receiver(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Attribute)
    return ast.dump(call.func.value)


def _calls_of(module: Module, name: str) -> list[ast.Call]:
    return [c for c in module.calls if isinstance(c.func, ast.Attribute) and c.func.attr == name]


def kept_with_model(context: Context, call: ast.Call, model: ast.expr) -> Iterator[Kept]:
    """`model, optimizer = build()`: what built the model built an optimizer of it."""
    module = context.module
    model = unchained(model)
    if not isinstance(model, ast.Name):
        return
    found = module.lookup(model.id, module.scope_of(call))
    for binding in found[1] if found else ():
        if not isinstance(binding, Assigned) or not binding.path:
            continue
        statement = module.statement(binding.target)
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        target = statement.targets[0]
        named = [
            element
            for element in (target.elts if isinstance(target, ast.Tuple) else ())
            if isinstance(element, ast.Name | ast.Attribute)
            and is_optimizer_name(ast.unparse(element))
        ]
        if named and after(call, statement) and not context.sites(statement.value):
            yield Kept(statement.value, (statement,), True)


def kept_loosely(context: Context, call: ast.Call, model: ast.expr) -> Iterator[Kept]:
    """Optimizers above a constructor whose model a loop, a lambda, a container or `getattr` gives it: of it, perhaps."""
    module = context.module
    if not _is_given_on(module, unchained(model)):
        return
    function, owner = _function_around(module, call), module.enclosing_class(call)
    for inner in module.calls:
        if not (isinstance(inner.func, ast.Attribute) and inner.func.attr in TAKING):
            continue
        receiver = unchained(inner.func.value)
        if isinstance(model, ast.Attribute) and not isinstance(receiver, ast.Name):
            continue  # another attribute: the names tell them apart
        around = _function_around(module, inner)
        if around is function and context.models.sharded(receiver, module):
            continue  # sharded already
        above = around is function and after(call, inner)
        first = (
            owner is not None
            and around is not function
            and module.enclosing_class(inner) is owner
            and getattr(around, "name", "") == "__init__"
            and around is not None
            and not _is_wrapped_first(module, function, around, inner)
        )
        if above or first:
            yield from (
                kept for kept in kept_from(context, inner, [ast.dump(receiver)]) if kept.optimizer
            )


def kept_globally(context: Context, call: ast.Call, model: ast.expr) -> Iterator[Kept]:
    """A global model wrapped in a function that is called below the optimizer."""
    module = context.module
    model, function = unchained(model), module.enclosing_function(call)
    if not isinstance(model, ast.Name) or not isinstance(function, ast.FunctionDef):
        return
    found = module.lookup(model.id, module.scope_of(call))
    if found is None or found[0] is not module.scope:
        return
    calls = [c for c in module.calls if module.scope_of(c) is module.scope]
    for inner in calls:
        if any(
            isinstance(c.func, ast.Name) and c.func.id == function.name and after(c, inner)
            for c in calls
        ):
            yield from kept_from(context, inner, [ast.dump(model)])


def _function_around(module: Module, node: ast.AST) -> ast.AST | None:
    """The function that a node is in; what a lambda does, its function does."""
    function = module.enclosing_function(node)
    while isinstance(function, ast.Lambda):
        function = module.enclosing_function(function)
    return function


def _is_given_on(module: Module, model: ast.expr) -> bool:
    """Whether the expression that is wrapped is no name of the model: an element, a loop's name, an attribute of something."""
    if isinstance(model, ast.Subscript):
        return True
    if isinstance(model, ast.Call):
        return isinstance(model.func, ast.Name) and model.func.id == "getattr"
    if isinstance(model, ast.Attribute):
        return isinstance(model.value, ast.Name) and model.value.id not in {"self", "cls"}
    if not isinstance(model, ast.Name):
        return False
    found = module.lookup(model.id, module.scope_of(model))
    return found is not None and any(
        isinstance(binding, Opaque)
        or (isinstance(binding, Parameter) and isinstance(binding.function, ast.Lambda))
        or (isinstance(binding, Assigned) and _gives(binding.value))
        for binding in found[1]
    )


def _gives(value: ast.expr) -> bool:
    """Whether an assigned value is taken from a container."""
    return isinstance(value, ast.Subscript) or (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id in {"getattr", "next"}
    )
