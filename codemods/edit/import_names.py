"""The names of one import statement after its changes: those that stay, in their layout, and those that come."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fsdp_migrate.codemods.edit.text import ABOVE, drop_items
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import NEWLINE

_BEHIND = re.compile(r"[ \t]*,[ \t]*(?:#[^\r\n]*)?(?=\r|\n)")


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
