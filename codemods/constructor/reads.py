"""What a function surely reads, whichever branch it takes, and with gradients: a part that it may not use has none."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_WITHOUT_GRADIENTS = ("no_grad", "inference_mode")


def surely_read(functions: Iterable[ast.FunctionDef]) -> set[str]:
    """The attributes that the forwards of some classes surely read, `.head`, also in methods and properties that those name."""
    used: set[str] = set()
    runs = [each for each in functions if not _without_gradients(each.decorator_list)]
    while True:
        named = (each for each in runs if each.name == "forward" or f".{each.name}" in used)
        more = used.union(*(_read(each.body, frozenset()) for each in named))
        if more == used:
            return used
        used = more


def _without_gradients(nodes: Iterable[ast.AST]) -> bool:
    return any(word in ast.unparse(node) for node in nodes for word in _WITHOUT_GRADIENTS)


def _read(body: list[ast.stmt], indices: frozenset[str]) -> set[str]:
    """The names that some statements surely read, and the attributes, with a dot.

    Args:
        indices: the names that count through a list.
    """
    found: set[str] = set()
    for place, statement in enumerate(body):
        if isinstance(statement, ast.If):
            found |= _in(statement.test, indices)
            ways = [way for way in (statement.body, statement.orelse) if not _raises(way)]
            leaving = any(way and isinstance(way[-1], _LEAVES) for way in ways)
            if leaving:
                ends = [way and isinstance(way[-1], _LEAVES) for way in ways]
                rest = body[place + 1 :]
                ways = [way if end else [*way, *rest] for way, end in zip(ways, ends, strict=True)]
            found |= set.intersection(*(_read(way, indices) for way in ways)) if ways else set()
            if leaving:
                return found
        elif isinstance(statement, ast.For | ast.AsyncFor):
            names = [n.id for n in ast.walk(statement.target) if isinstance(n, ast.Name)]
            inside = _read(statement.body, indices | {*names})
            counted = getattr(getattr(statement.iter, "func", None), "id", "") == "enumerate"
            every = inside.issuperset(name for name in names[counted:] if name[0] != "_")
            if every and not _is_slice(statement.iter):
                found |= _in(statement.iter, indices)  # each of them is used
            found |= inside
        elif isinstance(statement, ast.With | ast.AsyncWith | ast.Try | ast.FunctionDef):
            if not _without_gradients(getattr(statement, "items", ())):
                found |= _read(statement.body, indices)
        elif not isinstance(statement, ast.Assign) or isinstance(
            statement.targets[0], ast.Name | ast.Tuple
        ):
            found |= _in(getattr(statement, "test", statement), indices)  # else kept for later
    return found


def _raises(way: list[ast.stmt]) -> bool:
    return bool(way) and isinstance(way[-1], ast.Raise)


def _in(node: ast.AST, indices: frozenset[str]) -> set[str]:
    """What an expression surely reads."""
    if isinstance(node, ast.IfExp):
        either = _in(node.body, indices) & _in(node.orelse, indices)
        return _in(node.test, indices) | either
    if isinstance(node, ast.BoolOp):
        return _in(node.values[0], indices)
    if isinstance(node, _COMPREHENSIONS):
        if any(each.ifs or _is_slice(each.iter) for each in node.generators):
            return set()
    if isinstance(node, ast.Attribute) and node.attr in {"argmax", "detach"}:
        return set()
    if isinstance(node, ast.Subscript) and _chooses(node.slice, indices):
        return _in(node.slice, indices)
    if isinstance(node, ast.Attribute) and node.attr in {"bias", "weight"}:
        if isinstance(node.value, ast.Attribute):
            return {f".{node.value.attr}.{node.attr}"} | _in(node.value.value, indices)
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call) and _is_slice(node.func):
        children.remove(node.func)  # `self.layers[:2](x)`
    found = {name for child in children for name in _in(child, indices)}
    return found | set(_own(node))


def _is_slice(node: ast.expr) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)


def _own(node: ast.AST) -> Iterator[str]:
    if isinstance(getattr(node, "ctx", None), ast.Load):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield f".{node.attr}"


def _chooses(index: ast.expr, indices: frozenset[str]) -> bool:
    """Whether an index is known only when the program runs, and no counter."""
    return any(
        isinstance(each, ast.Name | ast.Attribute) and getattr(each, "id", "") not in indices
        for each in ast.walk(index)
    )
