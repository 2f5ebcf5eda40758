"""What a function surely reads, whichever branch it takes, and with gradients: a part that it may not use has none."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fsdp_migrate.facts.file import last_name

_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_WITHOUT_GRADIENTS = ("no_grad", "inference_mode", "set_grad_enabled")
# Methods, properties and functions of torch that hand no gradient on, or read no parameter of a module.
_CUTTING = frozenset(
    {
        "argmax",
        "argmin",
        "argsort",
        "bool",
        "ceil",
        "data",
        "detach",
        "device",
        "dim",
        "dtype",
        "floor",
    }
    | {
        "int",
        "item",
        "long",
        "ndim",
        "numel",
        "numpy",
        "parameters",
        "requires_grad",
        "round",
        "shape",
    }
    | {"sign", "size", "state_dict", "tolist"}
)
# Functions that make no tensor, and those that take some of what they are given.
_FUNCTIONS = frozenset({"bool", "float", "int", "isinstance", "len", "print", "str"})
_FUNCTIONS |= {"choice", "choices", "islice", "next", "sample"}


def surely_read(functions: Iterable[ast.FunctionDef]) -> set[str]:
    """The attributes that the forwards of some classes surely read, `.head`, also in methods and properties that those name."""
    used: set[str] = set()
    runs = [each for each in functions if not _without_gradients(each.decorator_list)]
    while True:
        named = (each for each in runs if each.name == "forward" or f".{each.name}" in used)
        more = used.union(*(_read(each.body, frozenset(), _dead(each)) for each in named))
        if more == used:
            return used
        used = more


def _without_gradients(nodes: Iterable[ast.AST]) -> bool:
    return any(word in ast.unparse(node) for node in nodes for word in _WITHOUT_GRADIENTS)


def _dead(function: ast.FunctionDef) -> frozenset[ast.AST]:
    """The assignments to names that nothing reads."""
    nodes = list(ast.walk(function))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    loads = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    return frozenset(
        node
        for node in nodes
        if isinstance(node, ast.Assign)
        and not any(
            isinstance(each, ast.Attribute) or (isinstance(each, ast.Name) and each.id in loads)
            for target in node.targets
            for each in ast.walk(target)
        )
    )


def _read(body: list[ast.stmt], indices: frozenset[str], dead: frozenset[ast.AST]) -> set[str]:
    """The names that some statements surely read, and the attributes, with a dot.

    Args:
        indices: the names that count through a list.
        dead: the assignments that do nothing.
    """
    found: set[str] = set()
    for place, statement in enumerate(body):
        if isinstance(statement, ast.If):
            ways = [way for way in (statement.body, statement.orelse) if not _raises(way)]
            leaving = any(way and isinstance(way[-1], _LEAVES) for way in ways)
            if leaving:
                ends = [way and isinstance(way[-1], _LEAVES) for way in ways]
                rest = body[place + 1 :]
                ways = [way if end else [*way, *rest] for way, end in zip(ways, ends, strict=True)]
            found |= (
                set.intersection(*(_read(way, indices, dead) for way in ways)) if ways else set()
            )
            if leaving:
                return found
        elif isinstance(statement, ast.For | ast.AsyncFor):
            names = [n.id for n in ast.walk(statement.target) if isinstance(n, ast.Name)]
            counts = () if _is_part(statement.iter) else names
            inside = _read(statement.body, indices.union(counts), dead)
            counted = getattr(getattr(statement.iter, "func", None), "id", "") == "enumerate"
            if inside.issuperset(name for name in names[counted:] if name[0] != "_"):
                found |= _in(statement.iter, indices)  # each of them is used
            found |= inside
        elif isinstance(statement, ast.With | ast.AsyncWith | ast.Try | ast.FunctionDef):
            may_stop = getattr(statement, "handlers", ())
            if not may_stop and not _without_gradients(getattr(statement, "items", ())):
                found |= _read(statement.body, indices, dead)
        elif not isinstance(statement, ast.Assert | ast.Assign | ast.Match) or (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name | ast.Tuple)
            and statement not in dead
        ):
            found |= _in(getattr(statement, "test", statement), indices)  # else kept for later
    return found


def _raises(way: list[ast.stmt]) -> bool:
    return bool(way) and isinstance(way[-1], ast.Raise)


def _in(node: ast.AST, indices: frozenset[str]) -> set[str]:
    """What an expression surely reads."""
    if isinstance(node, ast.IfExp):
        return _in(node.body, indices) & _in(node.orelse, indices)
    if isinstance(node, ast.BoolOp):
        return _in(node.values[0], indices)
    if _cuts(node):
        return set()
    if isinstance(node, ast.Subscript) and (_chooses(node.slice, indices) or _picks(node)):
        return _in(node.slice, indices)
    if isinstance(node, ast.Attribute) and node.attr in {"bias", "weight"}:
        if isinstance(node.value, ast.Attribute):
            return {f".{node.value.attr}.{node.attr}"} | _in(node.value.value, indices)
    found = {name for child in ast.iter_child_nodes(node) for name in _in(child, indices)}
    return found | set(_own(node))


def _cuts(node: ast.AST) -> bool:
    """Whether an expression gives what is in it no gradients, or some of it."""
    if isinstance(node, _COMPREHENSIONS):
        return any(each.ifs for each in node.generators)
    if isinstance(node, ast.Call):
        of_torch = _CUTTING if isinstance(node.func, ast.Attribute) else ()
        return last_name(node.func) in _FUNCTIONS - {"float", "str"} | {*of_torch} or (
            getattr(node.func, "id", "") in _FUNCTIONS
        )
    return isinstance(node, ast.Compare) or getattr(node, "attr", "") in _CUTTING


def _is_part(items: ast.expr) -> bool:
    """Whether a loop may count through a part of a list: `range(2)`, `range(1, n)`."""
    if not isinstance(items, ast.Call) or last_name(items.func) != "range":
        return False
    return len(items.args) != 1 or isinstance(items.args[0], ast.Constant)


def _picks(node: ast.Subscript) -> bool:
    """Whether certain items are taken of a list of the model's: `self.layers[0]`, `list(self.layers)[1:]`."""
    listed = last_name(getattr(node.value, "func", None)) == "list"
    is_list = listed or isinstance(node.value, ast.Attribute)
    return is_list and not isinstance(node.slice, ast.Name | ast.Tuple)


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
