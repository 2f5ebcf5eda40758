"""Whether an expression is a sharded model, or a part that is taken from one, and whether a call shards."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand.means_the_same import OF_MODULE
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File, given, last_name
from fsdp_migrate.facts.models import INNER
from fsdp_migrate.facts.nodes import receiver
from fsdp_migrate.facts.scopes import Assigned, Parameter


def is_of_model(context: Context, owner: ast.expr, steps: int = 3) -> bool:
    """Whether an expression can be a sharded model, or a part that is taken from one by its path."""
    if context.can_be_model(owner):
        return True
    if isinstance(owner, ast.Attribute | ast.Subscript):
        if isinstance(owner, ast.Attribute) and owner.attr in OF_MODULE:
            return False
        return is_of_model(context, owner.value, steps)
    if isinstance(owner, ast.Call) and owner.args:
        by_path = isinstance(owner.func, ast.Call) and last_name(owner.func.func) == "attrgetter"
        if by_path or last_name(owner.func) == "getattr":
            return is_of_model(context, owner.args[0], steps)
    if isinstance(owner, ast.Call) and last_name(owner.func) == "get_submodule":
        return is_of_model(context, receiver(owner) or owner.func, steps)
    if isinstance(owner, ast.Name) and steps:
        if any(map(context.can_be_model, _given_to_instances(context, owner))):
            return True
        return any(_is_part(context, each, steps - 1) for each in _values(context, owner))
    return False


def is_sharded_later(context: Context, model: ast.expr) -> bool:
    """Whether a variable is given to what shards it further down in its function."""
    file = context.file
    function = context.file.function(model)
    if not isinstance(model, ast.Name):
        return False
    for call in file.of(ast.Call):
        is_below = call.lineno > model.lineno and file.function(call) is function
        given = None
        if is_below and call.args:
            given = call.args[0]
        if isinstance(given, ast.Name) and file.variable(given) == file.variable(model):
            if shards(context, call):
                return True
    return False


def shards(context: Context, call: ast.Call) -> bool:
    """Whether a call is FSDP1's constructor, or one of a function with it inside."""
    if context.models.is_constructor(call, context.file):
        return True
    made = context.program.definition(call.func, context.file)
    if made is None or isinstance(made.node, ast.ClassDef):
        return False
    inside = context.models.constructors(made.file)
    return made.node in map(made.file.function, inside)


def _values(context: Context, name: ast.Name) -> Iterator[ast.expr]:
    """What a name is given in this file: by assignments, and by calls of the function that it is a parameter of."""
    for binding in context.file.bindings(name):
        if isinstance(binding, Assigned) and not binding.path:
            yield binding.value
        elif isinstance(binding, Parameter):
            for passed in context.models.origins.given(binding, context.file):
                if passed.file is context.file:
                    yield passed.value


def _given_to_instances(context: Context, name: ast.Name) -> Iterator[ast.expr]:
    """What is given to `__call__`, whose parameter a name is: `meter = Meter()`, `meter(model)`."""
    file = context.file
    cls = file.enclosing_class(name)
    if cls is None:
        return
    for binding in file.bindings(name):
        if not isinstance(binding, Parameter):
            continue
        function = binding.function
        if isinstance(function, ast.Lambda) or function.name != "__call__":
            continue
        for instance in _instances(file, cls):
            for call in file.calls.get(last_name(instance), ()):
                value = given(call, function, name.id)
                if value is not None:
                    yield value


def _instances(file: File, cls: ast.ClassDef) -> Iterator[ast.expr]:
    """The variables that objects of a class are assigned to."""
    for made in file.calls.get(cls.name, ()):
        statement = file.parents[made]
        if isinstance(statement, ast.Assign):
            yield from statement.targets


def _is_part(context: Context, value: ast.expr, steps: int) -> bool:
    """Whether a value is a part of a model, taken by its path, and not the model."""
    if context.can_be_model(value):
        return (
            isinstance(context.file.parents[value], ast.Call)
            or isinstance(value, ast.Subscript)
            or last_name(value) in INNER
        )
    return is_of_model(context, value, steps)
