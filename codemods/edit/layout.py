"""New code as black lays it out: a call on one line, or its arguments on lines of their own."""

import re
from collections.abc import Mapping, Sequence

_FLAG = re.compile(r", (?=\w+=(?!=))")


def call(
    name: str,
    arguments: Sequence[str],
    *,
    room: int,
    line: int,
    step: str = "    ",
    sources: Mapping[str, str] | None = None,
) -> str:
    """The code of a call.

    Args:
        room: the characters that its line has for it.
        line: those that a line has that begins as its statement does.
        step: the file's own indentation.
        sources: the code that arguments which are only names here will have.
    """
    known = sources or {}
    inside = ", ".join(known.get(each, each) for each in arguments)
    if len(f"{name}({inside})") <= room:
        return f"{name}({', '.join(arguments)})"
    if len(step) + len(inside) <= line:
        return f"{name}(\n{step}{', '.join(arguments)}\n)"
    rows = [_row(each, known, line - len(step), step) for each in arguments]
    return f"{name}(\n{''.join(rows)})"


def _row(argument: str, known: Mapping[str, str], line: int, step: str) -> str:
    """An argument on a line of its own, with the flags of a call in it each on one, too, where it is too long for that."""
    if len(known.get(argument, argument)) + 1 > line and argument.endswith(")"):
        begins, _, inside = argument.removesuffix(")").partition("(")
        flags = _FLAG.split(inside)
        if len(flags) > 1:
            rows = "".join(f"{step * 2}{flag},\n" for flag in flags)
            return f"{step}{begins}(\n{rows}{step}),\n"
    return f"{step}{argument},\n"
