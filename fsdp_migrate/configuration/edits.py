"""Changes of a tree as edits of its text: what they do not mention stays as it is, comments among it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping as Dictionary
from collections.abc import Sequence

from fsdp_migrate.codemods.edit.text import Refused, drop_items
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.configuration.tree import (
    Add,
    Change,
    Data,
    Entry,
    Listing,
    Mapping,
    Remove,
    Replace,
    Value,
)

_WORD = re.compile(r"[A-Za-z_][\w.]*")


def edits_of(text: str, changes: Sequence[Change]) -> list[Edit]:
    """The edits that make some changes.

    Raises:
        Refused: if a setting shares its line with something that stays, or a comment would be lost.
    """
    owners = [change.owner if isinstance(change, Add) else change.entry.owner for change in changes]
    edits: list[Edit] = []
    for mapping in dict.fromkeys(owners):
        own = [change for change, owner in zip(changes, owners, strict=True) if owner is mapping]
        edits += (_block if mapping.style == "block" else _flow)(text, mapping, own)
    return edits


def _block(text: str, mapping: Mapping, changes: Sequence[Change]) -> list[Edit]:
    edits = []
    newline = "\r\n" if "\r\n" in text else "\n"
    for change in changes:
        if isinstance(change, Add):
            before = change.before or mapping.entries[0]
            start, column = _line(text, before.span[0])
            indent = " " * column
            lines = [
                _pair(mapping, *each, text, newline + indent) for each in change.settings.items()
            ]
            if text[start : before.span[0]].strip():  # behind the dash of a list
                place, code = before.span[0], "".join(line + newline + indent for line in lines)
            else:
                place = _above_comments(text, start)
                code = "".join(indent + line + newline for line in lines)
            edits.append(Edit(place, place, code))
            continue
        start, end = change.entry.span
        first, column = _line(text, start)
        comments = _comments(text, change.entry)
        if isinstance(change, Replace):
            if comments:
                raise Refused("a comment is inside of it")
            edits.append(
                Edit(
                    start,
                    end,
                    _pair(mapping, change.key, change.value, text, newline + " " * column),
                )
            )
            continue
        last = text.find("\n", end) + 1 or len(text)
        if text[first:start].strip():
            raise Refused("it is the first of a list's item")
        comments += [part for part in [text[end:last].strip()] if part]
        edits.append(
            Edit(first, last, "".join(f"{' ' * column}{part}{newline}" for part in comments))
        )
    return edits


def _flow(text: str, mapping: Mapping, changes: Sequence[Change]) -> list[Edit]:
    """Settings between commas."""
    spans = [entry.span for entry in mapping.entries]
    removed = [
        mapping.entries.index(change.entry) for change in changes if isinstance(change, Remove)
    ]
    edits = [
        Edit(*change.entry.span, _pair(mapping, change.key, change.value, text))
        for change in changes
        if isinstance(change, Replace)
    ]
    added = [
        _pair(mapping, *each, text)
        for change in changes
        if isinstance(change, Add)
        for each in change.settings.items()
    ]
    if len(removed) == len(spans):
        return [*edits, Edit(spans[0][0], spans[-1][1], ", ".join(added))]
    here = [spans.index(c.before.span) for c in changes if isinstance(c, Add) and c.before]
    kept = [index for index in range(len(spans)) if index not in removed]
    first = spans[here[0] if here and here[0] in kept else kept[0]][0]
    start, _ = _line(text, first)
    newline = "\r\n" if text[:start].endswith("\r\n") else "\n"
    alone = start and not text[start:first].strip()
    between = f",{newline}{text[start:first]}" if alone else ", "
    if added:
        edits.append(Edit(first, first, "".join(pair + between for pair in added)))
    return edits + drop_items(text, spans, sorted(removed))


def _pair(mapping: Mapping, key: str, value: Data, text: str, newline: str = "") -> str:
    """A setting as the mapping would write it."""
    if mapping.style == "call":
        return f"{key}={_literal(value, 'dict')}"
    quote = text[mapping.entries[0].span[0]] if mapping.entries else ""
    name = f"{quote}{key}{quote}" if quote in ("'", '"') else key
    if mapping.style == "block" and isinstance(value, Dictionary):
        inner = "".join(f"{newline}  {k}: {_literal(v, 'flow')}" for k, v in value.items())
        return f"{name}:{inner}"
    return f"{name}: {_literal(value, mapping.style)}"


def _literal(value: Data, style: str) -> str:
    if isinstance(value, Dictionary):
        quote = '"' if style in ("dict", "json") else ""
        pairs = (f"{quote}{key}{quote}: {_literal(item, style)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(item, style) for item in value) + "]"
    if isinstance(value, str):
        plain = style in ("block", "flow") and _WORD.fullmatch(value)
        return value if plain else json.dumps(value, ensure_ascii=False)
    return repr(value) if style == "dict" else json.dumps(value)


def _line(text: str, place: int) -> tuple[int, int]:
    """Where the line of a place starts, and its column in it."""
    start = text.rfind("\n", 0, place) + 1
    return start, place - start


def _above_comments(text: str, start: int) -> int:
    """Where the comment lines above a line begin: they speak of that line."""
    while start:
        above = text.rfind("\n", 0, start - 1) + 1
        if not text[above:start].lstrip().startswith("#"):
            break
        start = above
    return start


def _comments(text: str, entry: Entry) -> list[str]:
    """The comments inside an entry."""
    start, end = entry.span
    blank = list(text[start:end])
    for first, last in _leaves(entry):
        for place in range(max(first, start), min(last, end)):
            blank[place - start] = "_"
    return [line.strip() for line in re.findall(r"(?:^|(?<=\s))#[^\r\n]*", "".join(blank), re.M)]


def _leaves(entry: Entry) -> list[tuple[int, int]]:
    found = [(entry.span[0], entry.span[0] + len(entry.key))]
    pending: list[Value] = [entry.value]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            for inner in value.entries:
                found.append((inner.span[0], inner.span[0] + len(inner.key)))
                pending.append(inner.value)
        elif isinstance(value, Listing):
            pending += value.items
        else:
            found.append(value.span)
    return found
