"""Whether a file puts more into a model than its class does: `model.bn = ...`, `setattr(model, ...)`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fsdp_migrate.index.known_modules import STORING
from fsdp_migrate.index.models import SELF_RETURNING
from fsdp_migrate.index.module import Module


def is_extended(places: Iterable[ast.expr], module: Module) -> bool:
    """Whether a file may put more into a model than its class does.

    Args:
        places: where the model can be reached. Whatever is spelled like one of them, or is bound to one, counts.
    """
    names = {ast.unparse(place) for place in places}
    aliases = [
        {ast.unparse(_itself(e)) for e in (node.value, *node.targets)}
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign)
    ]
    while more := [alias for alias in aliases if alias & names and not alias <= names]:
        names = names.union(*more)
    return any(
        ast.unparse(owner) in names
        for changed in _changed(module)
        for owner in _owners(changed)
        if isinstance(owner, ast.Name | ast.Attribute)
    )


def _itself(expression: ast.expr) -> ast.expr:
    """`model` for `model.to(device).train()`."""
    while (
        isinstance(expression, ast.Call)
        and isinstance(expression.func, ast.Attribute)
        and expression.func.attr in SELF_RETURNING
    ):
        expression = expression.func.value
    return expression


def _changed(module: Module) -> Iterator[ast.expr]:
    """What a file stores an attribute or element on, or registers something with; constants make no module."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Attribute | ast.Subscript):
                    yield target.value
        elif isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id == "setattr" and node.args:
                yield node.args[0]
            elif isinstance(function, ast.Attribute) and (
                function.attr in STORING or function.attr.startswith("register_buffer")
            ):
                yield function.value


def _owners(expression: ast.expr) -> Iterator[ast.expr]:
    """An expression and what it is a part of: `model.layers[0]`, `model.layers`, `model`."""
    yield expression
    while isinstance(expression, ast.Attribute | ast.Subscript):
        expression = expression.value
        yield expression
