"""Dictionaries that are unpacked into a constructor: `FSDP(model, **options)`."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import is_name


@dataclass(frozen=True, eq=False)
class Argument:
    """One argument of a call, or one key of a dictionary that is unpacked into it.

    Attributes:
        name: its name.
        value: the expression.
        node: the keyword, the value of a positional argument, or what adds the key to the dictionary.
    """

    name: str
    value: ast.expr
    node: ast.AST


def given_keys(context: Context, dictionary: ast.expr) -> list[Argument]:
    """The keys that a dictionary can have, as far as this file writes them; empty if none is seen.

    Every literal counts that a name or an attribute of the same class (`self.options`) is bound to, and what
    `options["key"] = value` and `options.update(...)` add, also under an `if`.
    """
    if isinstance(dictionary, ast.Dict | ast.Call):
        return list(_literal(dictionary))
    if not isinstance(dictionary, ast.Name | ast.Attribute):
        return []
    found: list[Argument] = []
    for place in _places(context, dictionary):
        parent = context.file.parents.get(place)
        if isinstance(parent, ast.Assign | ast.AnnAssign) and parent.value is not None:
            if parent.value is not place:
                found += _literal(parent.value)
        elif isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store):
            found += _stored(context, parent)
        elif isinstance(parent, ast.Attribute) and parent.attr == "update":
            call = context.call_of(parent)
            if call is not None:
                found += _keywords(call)
                for given in call.args:
                    found += _literal(given)
    return found


def is_whole(context: Context, dictionary: ast.expr) -> bool:
    """Whether the file writes every key that a dictionary can have."""
    match dictionary:
        case ast.Dict():
            if not all(key is None or isinstance(key, ast.Constant) for key in dictionary.keys):
                return False
            pairs = zip(dictionary.keys, dictionary.values, strict=True)
            return all(is_whole(context, value) for key, value in pairs if key is None)
        case ast.Call(func=ast.Name(id="dict")):
            others = [*dictionary.args]
            others += [each.value for each in dictionary.keywords if each.arg is None]
            return all(is_whole(context, other) for other in others)
        case ast.BinOp(op=ast.BitOr()):
            return is_whole(context, dictionary.left) and is_whole(context, dictionary.right)
        case ast.Name():
            return _is_whole_variable(context, dictionary)
    return False


def _is_whole_variable(context: Context, name: ast.Name) -> bool:
    variable = context.file.variable(name)
    if variable is None or len(variable.assigned) != len(variable.bindings):
        return False
    if any(each.path or not is_whole(context, each.value) for each in variable.assigned):
        return False
    return all(_adds_known(context, read) for read in context.file.reads(name))


def _adds_known(context: Context, read: ast.Name) -> bool:
    """Whether a use of a dictionary leaves all its keys known."""
    match parent := context.file.parents[read]:
        case ast.Subscript(slice=key):
            return isinstance(parent.ctx, ast.Load) or isinstance(key, ast.Constant)
        case ast.Attribute(attr="update"):
            call = context.call_of(parent)
            if call is None:
                return False
            others = [*call.args, *[k.value for k in call.keywords if k.arg is None]]
            return all(is_whole(context, other) for other in others)
        case ast.Attribute(attr=method):
            return method in ("get", "items", "keys", "values", "copy")
    return True


def _places(context: Context, dictionary: ast.Name | ast.Attribute) -> Iterator[ast.expr]:
    """The places of this file that mean the same variable, or the same attribute of `self`."""
    file = context.file
    if isinstance(dictionary, ast.Name):
        wanted = file.variable(dictionary)
        for name in file.of(ast.Name):
            found = None
            if name.id == dictionary.id:
                found = file.variable(name)
            if wanted is not None and found is not None and found.scope is wanted.scope:
                yield name
    elif isinstance(dictionary.value, ast.Name) and dictionary.value.id in {"self", "cls"}:
        cls = file.enclosing_class(dictionary)
        for attribute in file.attributes.get(dictionary.attr, ()):
            if file.enclosing_class(attribute) is cls:
                yield attribute
        for name in file.of(ast.Name):  # an attribute of the class
            if name.id == dictionary.attr and file.scope_of(name).node is cls:
                yield name


def _literal(value: ast.expr) -> Iterator[Argument]:
    """The keys of `{...}` and `dict(...)`."""
    if isinstance(value, ast.Dict):
        for key, item in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield Argument(key.value, item, key)
            elif key is None:
                yield from _literal(item)
    elif isinstance(value, ast.Call) and is_name(value.func, "dict"):
        yield from _keywords(value)
        for given in value.args:
            yield from _literal(given)
    elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        yield from _literal(value.left)
        yield from _literal(value.right)


def _keywords(call: ast.Call) -> Iterator[Argument]:
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield Argument(keyword.arg, keyword.value, keyword)
        else:
            yield from _literal(keyword.value)


def _stored(context: Context, subscript: ast.Subscript) -> Iterator[Argument]:
    """`options["key"] = value`."""
    statement = context.file.parents.get(subscript)
    key = subscript.slice
    if isinstance(statement, ast.Assign) and isinstance(key, ast.Constant):
        if isinstance(key.value, str):
            yield Argument(key.value, statement.value, subscript)
