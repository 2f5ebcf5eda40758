"""A configuration as a tree: each setting with its place in the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Dictionary
from dataclasses import dataclass, field

Span = tuple[int, int]
Data = object
# What only a run knows: a variable, a call, an interpolation.
UNKNOWN = object()


@dataclass(frozen=True)
class Code:
    """A value that Python alone can give, as it is written."""

    text: str


@dataclass(eq=False)
class Scalar:
    """One value that holds no others; `UNKNOWN` if the text does not say what it is."""

    data: Data
    span: Span


@dataclass(eq=False)
class Listing:
    """A sequence."""

    items: list[Value]
    span: Span


@dataclass(eq=False)
class Mapping:
    """Settings by name.

    Attributes:
        style: how it is written: `block` and `flow` in YAML, `json`, and in Python `dict` and `call`.
        merged: the mappings that YAML's `<<` takes settings from.
        is_open: whether more settings come from somewhere else, as by `**options`.
    """

    style: str
    span: Span
    entries: list[Entry] = field(default_factory=list)
    merged: list[Mapping] = field(default_factory=list)
    is_open: bool = False

    def all(self) -> Iterator[Entry]:
        """Its own entries, then those that it merges: of two with one name the first holds."""
        yield from self.entries
        for mapping in self.merged:
            yield from mapping.all()

    def get(self, *names: str) -> Entry | None:
        """The entry of the first name that is set, written with or without the prefix `fsdp_`."""
        for name in names:
            for entry in self.all():
                if entry.name == name:
                    return entry
        return None

    def key(self, key: str) -> Entry | None:
        """The entry with a key, written just so."""
        return next((entry for entry in self.all() if entry.key == key), None)

    def data(self, name: str, default: Data = None) -> Data:
        """The value of a name in any spelling; `default` where it is not set."""
        entry = self.get(name)
        if entry is None:
            return default
        return entry.data


@dataclass(eq=False)
class Entry:
    """One setting of a mapping; its span goes from the key to the end of the value."""

    owner: Mapping
    key: str
    value: Value
    span: Span

    @property
    def data(self) -> Data:
        """The value as Python's own."""
        return plain(self.value)

    @property
    def name(self) -> str:
        """The key without the prefix `fsdp_`: Accelerate and transformers read both."""
        if self.key != "fsdp_config":
            return self.key.removeprefix("fsdp_")
        return self.key


Value = Mapping | Listing | Scalar


@dataclass(frozen=True, eq=False)
class Remove:
    """An entry goes."""

    entry: Entry


@dataclass(frozen=True, eq=False)
class Replace:
    """Another key and value take an entry's place."""

    entry: Entry
    key: str
    value: Data


@dataclass(frozen=True, eq=False)
class Add:
    """New entries, in front of an entry of the same mapping; first in the mapping where none is named."""

    owner: Mapping
    settings: dict[str, Data]
    before: Entry | None = None


Change = Remove | Replace | Add


def mappings(root: Value, seen: set[Value] | None = None) -> Iterator[Mapping]:
    """The mappings of a tree, each once, outer ones first."""
    if seen is None:
        seen = set()
    if root in seen or isinstance(root, Scalar):
        return
    seen.add(root)
    if isinstance(root, Mapping):
        yield root
    if isinstance(root, Listing):
        values = root.items
    else:
        values = [entry.value for entry in root.entries]
    for value in values:
        yield from mappings(value, seen)


def plain(value: Value, changes: Sequence[Change] = ()) -> Data:
    """A tree as Python's own data, with some changes made."""
    if isinstance(value, Listing):
        return [plain(item, changes) for item in value.items]
    if isinstance(value, Scalar):
        return value.data
    found: dict[str, Data] = {}
    for mapping in reversed(value.merged):
        merged = plain(mapping, changes)
        assert isinstance(merged, Dictionary)
        found.update(merged)
    replaced = {change.entry: change for change in changes if isinstance(change, Replace)}
    removed = {change.entry for change in changes if isinstance(change, Remove)}
    for entry in value.entries:
        if entry in replaced:
            found[replaced[entry].key] = replaced[entry].value
        elif entry not in removed:
            found[entry.key] = plain(entry.value, changes)
    for change in changes:
        if isinstance(change, Add) and change.owner is value:
            found.update(change.settings)
    return found
