"""What a person reads on a terminal: lines with colour, names on one line, and how far a run is."""

import os
import shutil
import sys
import textwrap
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
    return columns(err=True) > 0


def columns(err: bool = False) -> int:
    """How wide the terminal is that standard output goes to, or standard error; 0 where it is none: lines are not wrapped."""
    stream = sys.stdout
    if err:
        stream = sys.stderr
    if stream is None or stream.closed or not stream.isatty():
        return 0
    return shutil.get_terminal_size().columns


def wrapped(text: str, width: int, first: str = "", rest: str = "    ") -> str:
    """A text in lines of a width, each behind an indent; as it is for width 0. Words, names and paths are not broken."""
    if not width or len(first) + len(text) <= width:
        return f"{first}{text}"
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def with_progress(items: Sequence[Item]) -> Iterator[Item]:
    """The items one after the other, with a bar on a terminal where they are many."""
    if len(items) < MANY or not is_terminal():
        yield from items
        return
    with click.progressbar(items, label="Reading files", file=sys.stderr) as bar:
        yield from bar


def printable(text: str, keep: str = "") -> str:
    """A name or code on one line: control characters and bytes that are no text are escaped."""
    if text.isprintable():
        return text
    shown = []
    for character in text:
        if character.isprintable() or character in keep:
            shown.append(character)
        else:
            shown.append(ascii(character)[1:-1])
    return "".join(shown)
