"""Walking the nested containers of a checkpoint."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Path = tuple[Any, ...]
"""The keys and indices that lead to a place."""


def shown(path: Path) -> str:
    """A path as text: `model.head.weight`."""
    return ".".join(map(str, path))


def leaves(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All that is no mapping, list or tuple, in order."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from leaves(value, (*path, index))
    else:
        yield path, tree


def mappings(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Mapping[Any, Any]]]:
    """All mappings, the outer before the inner."""
    if isinstance(tree, Mapping):
        yield path, tree
        for key, value in tree.items():
            yield from mappings(value, (*path, key))
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from mappings(value, (*path, index))


def like(mapping: Mapping[Any, Any], items: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """A mapping of the same kind with other items; `_metadata`, the versions of a model's modules, stays."""
    if not isinstance(mapping, OrderedDict):
        return dict(items)
    made: OrderedDict[Any, Any] = OrderedDict(items)
    if isinstance(metadata := getattr(mapping, "_metadata", None), Mapping):
        made._metadata = metadata  # type: ignore[attr-defined]
    return made
