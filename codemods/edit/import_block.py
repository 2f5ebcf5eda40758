"""Blocks of imports that are sorted as isort and ruff sort them: where a statement belongs."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection

from fsdp_migrate.facts.file import File

# Where isort and ruff sort a statement within its section: `import` first, by module.
Key = tuple[bool, str]
# The imports of a block, by the offsets of their lines; and what is put there.
Places = list[tuple[Key, int]]
Placed = dict[int, list[tuple[Key, str]]]


def module_of(node: ast.Import | ast.ImportFrom) -> str:
    """The module that a statement imports, or imports from."""
    return (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name


def key_of(is_from: bool, module: str) -> Key:
    """The key of a statement."""
    return is_from, module.lower()


def sorted_places(file: File, node: ast.stmt, moved: Collection[ast.stmt]) -> Places:
    """The imports in the lines around one, without those in `moved`, and the line behind them; none if they are not sorted."""
    body = file.block(node)
    first = last = body.index(node)

    def follow(above: ast.stmt, below: ast.stmt) -> bool:
        kinds = (ast.Import, ast.ImportFrom)
        imports = isinstance(above, kinds) and isinstance(below, kinds)
        return imports and file.lines(above)[1] == file.lines(below)[0]

    while first and follow(body[first - 1], body[first]):
        first -= 1
    while last + 1 < len(body) and follow(body[last], body[last + 1]):
        last += 1
    keys, places = [], []
    for each in body[first : last + 1]:
        assert isinstance(each, ast.Import | ast.ImportFrom)
        if getattr(each, "level", 0) or module_of(each).split(".")[0] in sys.stdlib_module_names:
            return []
        keys.append(key_of(isinstance(each, ast.ImportFrom), module_of(each)))
        if each not in moved:
            places.append((keys[-1], file.lines(each)[0]))
    if len(keys) < 2 or keys != sorted(keys):
        return []
    return [*places, ((True, "\uffff"), file.lines(body[last])[1])]
