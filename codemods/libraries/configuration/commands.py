"""Commands that a file of settings holds in pieces: a list of words, as in an editor's launch.json, and its environment."""

from collections.abc import Iterator, Sequence

from fsdp_migrate.codemods.libraries.configuration.launching import UNSURE, of_words, said_of
from fsdp_migrate.codemods.libraries.configuration.project import Project
from fsdp_migrate.codemods.libraries.configuration.tree import (
    Entry,
    Listing,
    Mapping,
    Scalar,
    Span,
    Value,
)

_SWITCH = "ACCELERATE_USE_FSDP"


def commands(roots: Sequence[Value], project: Project) -> Iterator[tuple[Span, str]]:
    """What sets FSDP1 in lists of words and in environments, with what to write."""
    seen: set[Value] = set()
    for root in roots:
        yield from _below(root, project, seen)


def _below(value: Value, project: Project, seen: set[Value]) -> Iterator[tuple[Span, str]]:
    if value in seen or isinstance(value, Scalar):
        return
    seen.add(value)
    if isinstance(value, Listing):
        yield from _of_list(value, project)
        inner = value.items
    else:
        yield from _of_environment(value, project)
        inner = [entry.value for entry in value.entries]
    for each in inner:
        yield from _below(each, project, seen)


def _of_list(listing: Listing, project: Project) -> Iterator[tuple[Span, str]]:
    words = []
    for item in listing.items:
        if isinstance(item, Scalar):
            words.append(str(item.data))
        else:
            words.append(UNSURE)
    if any(word.startswith(("--fsdp", "--use_fsdp", "--use-fsdp")) for word in words):
        for index, line in of_words(words, project):
            yield listing.items[index].span, line.message


def _of_environment(mapping: Mapping, project: Project) -> Iterator[tuple[Span, str]]:
    entries: dict[str, Entry] = {entry.key: entry for entry in mapping.entries}
    if _SWITCH in entries and str(mapping.data("FSDP_VERSION")) != "2":
        for key, entry in entries.items():
            said = said_of(key, str(entry.data), project)
            if said:
                yield entry.span, said
