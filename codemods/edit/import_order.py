"""The order of imports as isort and ruff have it: of the names in a statement, and of the statements in a block."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Sequence

from fsdp_migrate.codemods.edit.text import ABOVE, drop_items
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import NEWLINE, File

# Where isort and ruff sort a statement within its section: `import` first, by module.
Key = tuple[bool, str]
# The imports of a block, by the offsets of their lines; and what is put there.
Places = list[tuple[Key, int]]
Placed = dict[int, list[tuple[Key, str]]]
_BEHIND = re.compile(r"[ \t]*,[ \t]*(?:#[^\r\n]*)?(?=\r|\n)")


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


def edit_names(
    source: str,
    spans: Sequence[tuple[int, int]],
    before: Sequence[str],
    staying: Sequence[str],
    added: Sequence[str],
) -> tuple[list[Edit], list[str]]:
    """The edits of a statement's names, and the names after them. New ones come where a name goes, or where they sort."""
    after, order = list(staying), sorted(before, key=by_kind) == list(before)
    rest = list(added)
    for place in (place for place, name in enumerate(staying) if not name):
        swapped = [*after[:place], *rest[:1], *after[place + 1 :]]
        if rest and (not order or len(rest) == 1 == staying.count("")):
            if not order or sorted(filter(None, swapped), key=by_kind) == list(
                filter(None, swapped)
            ):
                after[place] = rest.pop(0)
    edits = [
        Edit(*span, new)
        for span, old, new in zip(spans, before, after, strict=True)
        if new not in ("", old)
    ]
    dropped = [place for place, name in enumerate(after) if not name]
    if len(dropped) < len(after):
        edits += drop_items(source, spans, dropped)
    names = [name for name in after if name]
    for name in rest:
        behind = (
            [i for i, each in enumerate(after) if each and by_kind(each) > by_kind(name)]
            if order
            else []
        )
        edits.append(_insertion(source, spans, behind[0] if behind else len(spans), name))
        at = sum(by_kind(each) < by_kind(name) for each in names) if order else len(names)
        names.insert(at, name)
    return edits, names


def _insertion(source: str, spans: Sequence[tuple[int, int]], place: int, name: str) -> Edit:
    """A name in front of another one, or behind the last; on a line of its own where that has one."""
    start, end = spans[min(place, len(spans) - 1)]
    above = ABOVE.search(source, 0, start)
    end_of_line = found[0] if (found := NEWLINE.search(source)) else "\n"
    line = f"{end_of_line}{above[1]}{name}" if above else name
    if place < len(spans):
        at = above.start() if above else start
        return Edit(at, at, f"{line}," if above else f"{line}, ")
    if above and (tail := _BEHIND.match(source, end)):
        return Edit(tail.end(), tail.end(), f"{line},")
    return Edit(end, end, f",{line}" if above else f", {line}")


def by_kind(name: str) -> tuple[object, ...]:
    """isort's and ruff's order: CONSTANTS, Classes, functions; each without regard to case, `a2` before `a10`."""
    constant = name.split()[0].isupper() and len(name) > 1
    parts = re.split(r"(\d+)", name.lower())
    natural = tuple((int(part) if part.isdigit() else -1, part) for part in parts)
    return (0 if constant else 1 if name[:1].isupper() else 2, natural, name)
