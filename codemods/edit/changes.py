"""Changes of LibCST's nodes, made together: inner ones first."""

from collections.abc import Callable
from typing import Any

import libcst as cst

# Makes what takes a node's place out of that node.
Change = Callable[[Any], Any]


class Changes(cst.CSTTransformer):
    """Makes the changes of nodes, inner ones first; what has none in it stays the object that it is."""

    def __init__(self, changes: dict[cst.CSTNode, list[Change]], root: cst.CSTNode) -> None:
        super().__init__()
        self._of = changes
        self._with_changes: set[cst.CSTNode] = set()
        self._find(root)

    def _find(self, node: cst.CSTNode) -> bool:
        inside = [self._find(child) for child in node.children]
        if node in self._of or any(inside):
            self._with_changes.add(node)
        return node in self._with_changes

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node in self._with_changes

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        for change in self._of.get(original_node, ()):
            if isinstance(updated_node, cst.FlattenSentinel):  # what stands in front of it stays
                *others, updated_node = updated_node
                updated_node = cst.FlattenSentinel([*others, *_several(change(updated_node))])
            else:
                updated_node = change(updated_node)
        return updated_node


def _several(result: Any) -> list[Any]:
    if isinstance(result, cst.FlattenSentinel):
        return [*result]
    return [result]
