"""Where in a container a value lies: `models["policy"]`, the second of a tuple, each of a list."""

from __future__ import annotations

import ast
from typing import NamedTuple

ANY: object = ...


class Item(NamedTuple):
    """One step from a container to what it holds.

    Attributes:
        key: the index or key; ANY where it is known only when the program runs.
        mapping: whether the container is a dictionary, so that a loop over it gives keys.
    """

    key: object = ANY
    mapping: bool = False

    def matches(self, key: object) -> bool:
        """Whether what is read at a key, or at ANY, can be this item."""
        return ANY in (self.key, key) or self.key == key


Path = tuple[Item, ...]


def key_of(expression: ast.expr | None) -> object:
    """The key that an expression gives; ANY if it is no constant."""
    return expression.value if isinstance(expression, ast.Constant) else ANY


def step_into(container: ast.AST, element: ast.expr) -> Item | None:
    """The step from a display or comprehension to one of its elements; None if the element is not held by it."""
    if isinstance(container, ast.Tuple | ast.List | ast.Set):
        index = container.elts.index(element)
        before = container.elts[:index]
        return Item(ANY if any(isinstance(e, ast.Starred) for e in before) else index)
    if isinstance(container, ast.Dict):
        for key, value in zip(container.keys, container.values, strict=True):
            if value is element and key is not None:
                return Item(key_of(key), mapping=True)
        return None
    if isinstance(container, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        return Item() if element is container.elt else None
    if isinstance(container, ast.DictComp):
        return Item(mapping=True) if element is container.value else None
    return None


def passed_on(function: str, position: int | None, path: Path) -> Path | None:
    """Where a value lies in the result of a builtin or container class that is given it; None if it does not.

    Args:
        function: the builtin's name, or the dotted name of a class of torch's.
        position: of the argument among the positional ones; None for one given by name.
    """
    if function == "zip" and position is not None and path and not path[0].mapping:
        return (Item(), Item(position), *path[1:])
    if function == "torch.nn.Sequential" and position is not None:
        return (Item(position), *path)
    if position != 0 or not path:
        return None
    head, *rest = path
    if function in {"dict", "OrderedDict", "torch.nn.ModuleDict"}:
        return path if head.mapping else None
    if head.mapping:
        return None
    if function == "enumerate":
        return (Item(), Item(1), *rest)
    if function in {"next", "max", "min"}:
        return tuple(rest)
    if function in {"list", "tuple", "iter", "torch.nn.ModuleList"}:
        return path
    if function in {"reversed", "sorted", "set", "frozenset"}:
        return (Item(), *rest)
    return None


def taken_by(method: str, call: ast.Call, path: Path) -> Path | None:
    """Where a value lies in the result of a container's method; None if it does not."""
    head, *rest = path
    if method == "values" and not call.args:
        return (Item(), *rest)
    if method == "items" and not call.args:
        return (Item(), Item(1), *rest)
    if method in {"get", "pop", "setdefault"}:
        key = key_of(call.args[0]) if call.args else ANY
        return tuple(rest) if head.matches(key) else None
    return path if method == "copy" else None
