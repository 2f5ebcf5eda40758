"""A line that differs, for a reader: where it is, its code, and each variable on a line of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fsdp_migrate.verify.where.lines import Line, Pair

_SHOWN = 3
"""Lines that are shown at most, without `-v`."""

_CODE = 48
"""Characters of a line of code, and of both values where they are on one line."""

_VALUE = 60
"""Characters of a value that has its own line."""

_OF_FSDP1 = re.compile(r"_fsdp_wrapped_module|_flat_param|part of a flat parameter|module FSDP\(")
_LOST = re.compile(r"\bof no module\b")
_FORM = re.compile(r"~(?=[A-Za-z])")
_OF_NO_MODULE = re.compile(r"\bparameters? (\d+) of no module")


def in_words(lines: Sequence[Line], *, verbose: bool) -> Iterator[tuple[str, str]]:
    """Texts in their order, each with the indent of its further lines."""
    shown = lines
    if not verbose:
        shown = lines[:_SHOWN]
    for number, line in enumerate(shown):
        begin = "differs first at"
        if number:
            begin = "then at"
        rules = ""
        if line.rules:
            rules = f" ({', '.join(line.rules)})"
        yield f"{begin} {line.place}{rules}: {_short(line.source)}", "    "
        for pair in line.pairs:
            for text in _of_pair(pair):
                yield f"    {text}", "        "
        if why := surprise(line):
            yield f"    {why}", "    "
    more = len(lines) - len(shown)
    if more:
        yield f"and {more} more lines (-v shows them)", "    "


def surprise(line: Line) -> str:
    """Which program has the value that a reader would not expect, where the values show it."""
    if any(_LOST.search(pair.migrated) and not _LOST.search(pair.original) for pair in line.pairs):
        return "The migrated program lost these parameters: sharding replaced them."
    for pair in line.pairs:
        if _OF_FSDP1.search(pair.original) and not _OF_FSDP1.search(pair.migrated):
            return "Only the original has FSDP1's names and flat parameters here; the migrated program has the model's own."
    return ""


def _of_pair(pair: Pair) -> Iterator[str]:
    """One line, or three where the values are long."""
    old, new = [
        _FORM.sub("", _OF_NO_MODULE.sub(r"\1 parameters of no module", each))
        for each in pair.texts(_VALUE)
    ]
    name = pair.name
    if name == "return":
        name = "the result"
    if len(name) + len(old) + len(new) <= _CODE:
        yield f"{name}: original {old}, migrated {new}"
        return
    yield f"{name}:"
    yield f"  original {old}"
    yield f"  migrated {new}"


def _short(code: str) -> str:
    if len(code) > _CODE:
        return f"`{code[: _CODE - 1]}…`"
    return f"`{code}`"
