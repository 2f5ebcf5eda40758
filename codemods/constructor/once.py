"""Names of generated code that are read once: what they stand for is written there, where that takes no more lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence


def inlined(lines: Sequence[str], names: Iterable[str], room: int) -> list[str]:
    """Statements without the assignments of some names that only one of them reads, where that has room for what they are.

    Args:
        lines: the statements, each on one line as long as it is.
        room: the characters that a line has.
    """
    lines = list(lines)
    for name in names:
        made = [at for at, line in enumerate(lines) if line.lstrip().startswith(f"{name} = ")]
        # Not the name of a keyword.
        read = re.compile(rf"(?<![\w.\"']){re.escape(name)}\b(?!\s*=[^=])")
        reads = [at for at, line in enumerate(lines) if at not in made and read.search(line)]
        if len(made) != 1 or len(reads) != 1 or reads[0] < made[0]:
            continue
        value = lines[made[0]].lstrip().removeprefix(f"{name} = ")
        line = lines[reads[0]]
        found = [*read.finditer(line)]
        if "\n" in value or len(found) > 1:
            continue
        new = line[: found[0].start()] + value + line[found[0].end() :]
        before = _height(lines[made[0]], room) + _height(line, room)
        if _is_in_room(new, room) and _height(new, room) <= before:
            lines[reads[0]] = new
            del lines[made[0]]
    return lines


def _items(line: str) -> list[str]:
    """What is between the commas of the call or the dictionary that a statement is, or assigns."""
    statement = line.strip()
    try:
        node = ast.parse(statement).body[0]
    except SyntaxError:  # the head of a block
        return []
    if not isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign | ast.Return):
        return []
    match node.value:
        case ast.Call(args=args, keywords=keywords):
            every: list[ast.AST] = [*args, *keywords]
            return [ast.get_source_segment(statement, each) or "" for each in every]
        case ast.Dict(keys=keys, values=values):
            return [*map(_entry, keys, values)]
    return []


def _entry(key: ast.expr | None, value: ast.expr) -> str:
    if key is None:
        return f"**: {ast.unparse(value)}"
    return f"{ast.unparse(key)}: {ast.unparse(value)}"


def _height(line: str, room: int) -> int:
    """How many lines black needs for a statement: one, three for all arguments on one, or one for each item."""
    if len(line) <= room:
        return 1
    items = _items(line)
    margin = len(line) - len(line.lstrip()) + 4
    if line.endswith(")") and margin + len(", ".join(items)) <= room:
        return 3
    return len(items) + 2


def _is_in_room(line: str, room: int) -> bool:
    """Whether a statement has room on its lines, if each of its items is on one."""
    if len(line) <= room:
        return True
    margin = len(line) - len(line.lstrip()) + 4
    items = _items(line)
    return bool(items) and all(margin + len(item) < room for item in items)
