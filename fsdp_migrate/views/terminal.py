"""What a person reads on a terminal: lines with colour, names on one line, and how far a run is."""

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import click

Item = TypeVar("Item")
MANY = 50  # that many take a second


def say(text: str, err: bool = False, **style: Any) -> None:
    """Print a text in a style of `click.style`; terminals get colour, unless the environment says otherwise."""
    click.secho(text, err=err, color=_colour(), **style)


def _colour() -> bool | None:
    """What NO_COLOR (no-color.org) and FORCE_COLOR ask for; None leaves it to click."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    if os.environ.get("TERM") == "dumb":
        return False
    return None


def is_terminal() -> bool:
    """Whether messages go to a terminal; a closed or replaced stream is none."""
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()


def with_progress(items: Sequence[Item]) -> Iterator[Item]:
    """The items one after the other, with a bar on a terminal where they are many."""
    if len(items) < MANY or not is_terminal():
        yield from items
        return
    with click.progressbar(items, label="Files with FSDP", file=sys.stderr) as bar:
        yield from bar


def printable(text: str, keep: str = "") -> str:
    """A name or code on one line: control characters and bytes that are no text are escaped."""
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)
