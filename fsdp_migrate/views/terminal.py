"""Where text goes: results to stdout, messages to stderr, colour to terminals only."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Literal, TypeVar

import click

Stream = Literal["stdout", "stderr"]
Item = TypeVar("Item")
MANY = 50  # that many take a second


def wants_colour(stream: Stream) -> bool:
    """NO_COLOR (no-color.org) and FORCE_COLOR decide, else whether a person reads along."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def is_terminal(stream: Stream) -> bool:
    """Whether the stream is a terminal; a closed or replaced one is none."""
    handle = getattr(sys, stream)
    return bool(handle is not None and not handle.closed and handle.isatty())


def with_progress(items: Sequence[Item]) -> Iterator[Item]:
    """The items one after the other, with a bar on a terminal where they are many."""
    if len(items) < MANY or not is_terminal("stderr"):
        yield from items
        return
    with click.progressbar(items, label="Files with FSDP", file=sys.stderr) as bar:
        yield from bar


def paint(text: str, stream: Stream, **style: bool | str) -> str:
    """`text` in a style of `click.style`, where the stream wants colour."""
    if not wants_colour(stream):
        return text
    return click.style(text, **style)  # type: ignore[arg-type]


def printable(text: str, keep: str = "") -> str:
    """A name or code on one line: control characters and bytes that are no text are escaped."""
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def write_text(text: str, stream: Stream = "stdout") -> None:
    """One line or more. What the stream's encoding lacks is escaped, never fatal."""
    encoding = getattr(getattr(sys, stream), "encoding", None) or "utf-8"
    write_bytes((text + "\n").encode(encoding, "backslashreplace"), stream)


def write_bytes(data: bytes, stream: Stream = "stdout") -> None:
    """Bytes as they are: line endings and encodings belong to the file that they come from."""
    handle = getattr(sys, stream)
    if handle is None:  # closed, as in `>&-`
        return
    handle.flush()
    handle.buffer.write(data)
    handle.buffer.flush()
