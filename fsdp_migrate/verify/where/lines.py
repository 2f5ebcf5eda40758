"""A line of the program that does something else after the migration."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

MOST = 10
"""At most so many lines are reported."""
GOES_ON = "the next line"
"""The name of a pair that says where the programs go on."""
MEET = "where both meet again"
"""Of a program that skips what the other one does."""
_WIDTH = 80
"""Characters of a value in a text."""
_WRAPPED = re.compile(r"module FSDP\((.*)\)$")
_NUMBER = re.compile(r" #[0-9a-f]{4}\b")
"""What tells long lists apart, and nothing to a reader."""


@dataclass(frozen=True)
class Pair:
    """What differs at a line: a variable, an attribute, what a call returned or where the program went on."""

    name: str
    original: str
    migrated: str

    def texts(self, width: int = _WIDTH) -> tuple[str, str]:
        """Both values, around the place at which they begin to differ."""
        old, new = [_NUMBER.sub("", each) for each in (self.original, self.migrated)]
        return shortened(old, new, width)

    def __str__(self) -> str:
        old, new = self.texts()
        return f"{self.name}: original {old}, migrated {new}"


def is_unwrapped(original: str, migrated: str) -> bool:
    """Whether both are the same model, in FSDP1's wrapper and, under FSDP2, by itself."""
    return _WRAPPED.sub(r"module \1", original) == migrated


def shortened(one: str, other: str, width: int = _WIDTH) -> tuple[str, str]:
    """Two texts around the place at which they begin to differ, where they are long."""
    if max(len(one), len(other)) <= width:
        return one, other
    same = next((n for n, pair in enumerate(zip(one, other, strict=False)) if len({*pair}) > 1), 0)
    start = max(same - width // 2, 0)
    if start:
        # From the beginning of a word on.
        start = one.find(" ", start) + 1 or start
    return _cut(one, start, width), _cut(other, start, width)


def _cut(text: str, start: int, width: int) -> str:
    end = start + width
    before = ""
    if start:
        before = "…"
    after = ""
    if end < len(text):
        after = "…"
    return f"{before}{text[start:end]}{after}"


@dataclass(frozen=True)
class Line:
    """A line that differs.

    Attributes:
        file, line: in the original program; relative to its folder.
        source: the line's text.
        pairs: what differs, the first one first.
        rank: the first rank that differs there.
        rules: the codes of the findings on this line, first those that need the user; empty where the tool said nothing.
        needs_user: whether one of them needs the user.
        message: what the first of these says.
        around: the lines around it, with their numbers.
    """

    file: str
    line: int
    source: str
    pairs: tuple[Pair, ...]
    rank: int
    rules: tuple[str, ...] = ()
    around: tuple[tuple[int, str], ...] = ()
    needs_user: bool = False
    message: str = ""

    @property
    def is_of_gradients(self) -> bool:
        """Whether only gradients differ there, as the optimizer gets them."""
        return all(pair.name.endswith("<gradients>") for pair in self.pairs)

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"

    def __str__(self) -> str:
        values = "; ".join(map(str, self.pairs))
        if self.rules:
            rules = f" ({', '.join(self.rules)})"
        else:
            rules = ""
        return f"{self.place}: `{self.source}`: {values}{rules}"

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        told = asdict(self)
        del told["around"], told["message"]
        return {**told, "text": str(self)}
