"""Walking and rebuilding the nested containers of a checkpoint."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

Place = tuple[Any, ...]
"""The keys and indices that lead to a node."""


def shown(place: Place) -> str:
    """A place as text: `model.head.weight`."""
    return ".".join(map(str, place))


def nodes(tree: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every container and every leaf with its place; a container comes before what it holds."""
    yield place, tree
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from nodes(value, (*place, key))
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from nodes(value, (*place, index))


def leaves(tree: Any) -> Iterator[tuple[Place, Any]]:
    """Everything that is no mapping, list or tuple, in order."""
    for place, node in nodes(tree):
        if not isinstance(node, (Mapping, list, tuple)):
            yield place, node


def tensors(tree: Any) -> list[torch.Tensor]:
    """All tensors, in order."""
    return [value for _, value in leaves(tree) if isinstance(value, torch.Tensor)]


def mappings(tree: Any) -> Iterator[tuple[Place, Mapping[Any, Any]]]:
    """All mappings, the outer before the inner."""
    for place, node in nodes(tree):
        if isinstance(node, Mapping):
            yield place, node


def rebuilt(tree: Any, change: Callable[[Place, Any], Any], place: Place = ()) -> Any:
    """The tree with `change(place, node)` for each node, from the inside."""
    if isinstance(tree, Mapping):
        tree = like(tree, ((k, rebuilt(v, change, (*place, k))) for k, v in tree.items()))
    elif type(tree) in (list, tuple):
        tree = type(tree)(rebuilt(v, change, (*place, i)) for i, v in enumerate(tree))
    return change(place, tree)


def like(mapping: Mapping[Any, Any], items: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """A mapping of the same kind with other items; `_metadata`, the versions of a model's modules, stays."""
    if not isinstance(mapping, OrderedDict):
        return dict(items)
    made: OrderedDict[Any, Any] = OrderedDict(items)
    if isinstance(metadata := getattr(mapping, "_metadata", None), Mapping):
        made._metadata = metadata  # type: ignore[attr-defined]
    return made
