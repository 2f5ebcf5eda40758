"""Modules of which FSDP1 wraps parts, and not the whole: `model.backbone = FSDP(model.backbone)`."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from fsdp_migrate.facts.file import File, root_of
from fsdp_migrate.facts.models import models_of
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.origins import value_of
from fsdp_migrate.facts.program import Definition, Program, is_module


class _Put(NamedTuple):
    """An assignment that puts a wrapped module into another one."""

    file: File
    statement: ast.Assign
    owner: ast.expr


def has_sharded_part(program: Program, expression: ast.expr, file: File) -> bool:
    """Whether an assignment of the program puts a wrapped module into what an expression holds."""
    puts = program.once(_puts)
    if not puts:
        return False
    cls = _class_of(program, expression, file)
    return any(_is_into(program, put, expression, file, cls) for put in puts)


def _is_into(
    program: Program, put: _Put, expression: ast.expr, file: File, cls: ast.ClassDef | None
) -> bool:
    if put.file is file and put.file.function(put.statement) is file.function(expression):
        if expression.lineno < put.statement.lineno:
            return False  # it is not wrapped yet
    root = root_of(put.owner)
    if isinstance(root, ast.Name) and root.id == "self" and cls is not None:
        if cls is put.file.enclosing_class(put.owner):
            return is_module(program, Definition(put.file, cls))
    match put.owner, expression:
        case ast.Name(), ast.Name():
            return file is put.file and file.variable(expression) == file.variable(put.owner)
        case ast.Attribute(attr=name), ast.Attribute(attr=other):
            return name == other
    return False


def _class_of(program: Program, expression: ast.expr, file: File) -> ast.ClassDef | None:
    """The class of the program that an expression is an object of: of `self`, or of what a call has made."""
    if isinstance(expression, ast.Name) and expression.id == "self":
        return file.enclosing_class(expression)
    value = value_of(program, file, expression)
    if value is None or not isinstance(value.node, ast.Call):
        return None
    made = models_of(program).origins.called(value.node, value.file)
    if made is None or not isinstance(made.node, ast.ClassDef):
        return None
    return made.node


def _puts(program: Program) -> list[_Put]:
    return list(_found(program))


def _found(program: Program) -> Iterator[_Put]:
    for file in program.files:
        for statement in file.of(ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Attribute | ast.Subscript):
                    if _is_wrapped(program, statement.value, file):
                        yield _Put(file, statement, target.value)


def _is_wrapped(program: Program, value: ast.expr, file: File) -> bool:
    """Whether a value is a wrapped module: also what `get_wrapper(...)(module)` returns."""
    models = models_of(program)
    if models.can_hold(value, file):
        return True
    match value:
        case ast.Call(func=ast.Call() as made):
            wrapper = models.origins.called(made, file)
            return wrapper is not None and any(
                program.fsdp1(node, wrapper.file) == CLASS
                for node in ast.walk(wrapper.node)
                if isinstance(node, ast.Name | ast.Attribute)
            )
    return False
