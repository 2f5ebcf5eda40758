"""Changes to a tree as edits of its text: all else is kept, comments included."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Dictionary

from fsdp_migrate.codemods.edit.items import read
from fsdp_migrate.codemods.edit.text import Refused, spliced
from fsdp_migrate.codemods.libraries.configuration.tree import (
    Add,
    Change,
    Code,
    Data,
    Listing,
    Mapping,
    Remove,
    Replace,
    Span,
    Value,
)
from fsdp_migrate.codemods.rule import Edit

_WORD = re.compile(r"[A-Za-z_][\w.]*")
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\r\n]*", re.MULTILINE)


def edits_of(text: str, changes: Sequence[Change]) -> list[Edit]:
    """The edits that make some changes.

    Raises:
        Refused: if a setting shares its line with something that stays, or a comment is inside of one.
    """
    by_owner: dict[Mapping, list[Change]] = {}
    for change in changes:
        if isinstance(change, Add):
            owner = change.owner
        else:
            owner = change.entry.owner
        by_owner.setdefault(owner, []).append(change)
    edits: list[Edit] = []
    for mapping, own in by_owner.items():
        writer = _Writer(text, mapping)
        if mapping.style == "block":
            edits += writer.lines(own)
        else:
            edits += writer.items(own)
    return edits


class _Writer:
    """The edits of one mapping."""

    def __init__(self, text: str, mapping: Mapping) -> None:
        self.text = text
        self.mapping = mapping
        self.newline = "\n"
        if "\r\n" in text:
            self.newline = "\r\n"

    def lines(self, changes: Sequence[Change]) -> Iterator[Edit]:
        """In YAML's block style: a setting has lines of its own."""
        for change in changes:
            if isinstance(change, Add):
                yield self.new_lines(change)
                continue
            start, end = change.entry.span
            first, indent = self.margin(start)
            comments = self.comments(start, end)
            if isinstance(change, Replace):
                if comments:
                    raise Refused("it contains a comment")
                yield Edit(start, end, self.pair(change.key, change.value, indent))
                continue
            if self.text[first:start].strip():
                raise Refused("it shares its line with the dash of a list")
            last = self.text.find("\n", end) + 1 or len(self.text)
            comments += [part for part in [self.text[end:last].strip()] if part]
            yield Edit(first, last, "".join(indent + each + self.newline for each in comments))

    def new_lines(self, change: Add) -> Edit:
        place = (change.before or self.mapping.entries[0]).span[0]
        start, indent = self.margin(place)
        lines = [self.pair(*each, indent) + self.newline for each in change.settings.items()]
        if self.text[start:place].strip():  # behind the dash of a list
            return Edit(place, place, "".join(line + indent for line in lines))
        while start:  # above the comment lines that speak of the setting
            above = self.text.rfind("\n", 0, start - 1) + 1
            if not self.text[above:start].lstrip().startswith("#"):
                break
            start = above
        return Edit(start, start, "".join(indent + line for line in lines))

    def items(self, changes: Sequence[Change]) -> list[Edit]:
        """Between commas. LibCST reads what is around the entries, for which names stand: those of YAML are no Python."""
        entries = self.mapping.entries
        start, end = self.mapping.span
        sign = ":"
        if self.mapping.style == "call":
            sign = "="
        edits = list[Edit]()
        names = {entry: f"_entry{place}_{sign}_" for place, entry in enumerate(entries)}
        stands = [Edit(*entry.span, name) for entry, name in names.items()]
        items = read(spliced(self.text, stands, start, end))
        found = {item.text.rstrip(): item for item in items.items}
        for change in changes:
            if isinstance(change, Replace):
                found[names[change.entry]].text = self.pair(change.key, change.value)
            elif isinstance(change, Add):
                below = found[names[change.before or entries[0]]]
                for pair in change.settings.items():
                    items.insert(items.items.index(below), self.pair(*pair))
        for change in changes:
            if isinstance(change, Remove):
                items.drop(found[names[change.entry]], self.comments(*change.entry.span))
        code = items.code
        for entry, name in names.items():
            if name in code:
                between, _, code = code.partition(name)
                edits.append(Edit(start, entry.span[0], between))
                start = entry.span[1]
        edits.append(Edit(start, end, code))
        return [edit for edit in edits if self.text[edit.start : edit.end] != edit.text]

    def pair(self, key: str, value: Data, indent: str = "") -> str:
        """A setting as the mapping would write it."""
        style = self.mapping.style
        entries = self.mapping.entries
        if style == "call":
            return f"{key}={_literal(value, 'dict')}"
        quote = ""
        if entries:
            quote = self.text[entries[0].span[0]]
        name = key
        if quote in ("'", '"'):
            name = f"{quote}{key}{quote}"
        if style == "block" and isinstance(value, Dictionary):
            inner = [f"{self.newline}{indent}  {k}: {_literal(v, style)}" for k, v in value.items()]
            return f"{name}:{''.join(inner)}"
        return f"{name}: {_literal(value, style)}"

    def margin(self, place: int) -> tuple[int, str]:
        """Where the line of a place starts, and the indentation that reaches it."""
        start = self.text.rfind("\n", 0, place) + 1
        before = self.text[start:place]
        if before.strip():
            return start, " " * len(before)
        return start, before

    def comments(self, start: int, end: int) -> list[str]:
        """The comments in a part of the text."""
        if "#" not in self.text[start:end]:
            return []
        blank = list(self.text[start:end])
        for first, last in _leaves(self.mapping):
            for place in range(max(first, start), min(last, end)):
                blank[place - start] = "_"
        return [line.strip() for line in _COMMENT.findall("".join(blank))]


def _leaves(value: Value) -> Iterator[Span]:
    """The places of values that hold no others."""
    if isinstance(value, Listing):
        inner = value.items
    else:
        inner = []
    if isinstance(value, Mapping):
        inner = [entry.value for entry in value.entries]
    for each in inner:
        if isinstance(each, Mapping | Listing):
            yield from _leaves(each)
        else:
            yield each.span


def _literal(value: Data, style: str) -> str:
    """A value in YAML, JSON or Python."""
    if isinstance(value, Code):
        return value.text
    quoted = style in ("dict", "json")
    if isinstance(value, Dictionary):
        pairs = []
        for key, item in value.items():
            if quoted:
                key = json.dumps(key)
            pairs.append(f"{key}: {_literal(item, style)}")
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(item, style) for item in value) + "]"
    if isinstance(value, str):
        plain = not quoted and _WORD.fullmatch(value)
        if plain:
            return value
        return json.dumps(value, ensure_ascii=False)
    if style == "dict":
        return repr(value)
    return json.dumps(value)
