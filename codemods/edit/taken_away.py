"""Takes a statement away, with the comments that speak of it alone."""

import ast
import re

from fsdp_migrate.codemods.edit.text import (
    comments,
    comments_between,
    indentation,
    line_start,
    newline,
    remove_statement,
)
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import File

_EMPTY = re.compile(r"(?:[ \t]*(?:\r\n|\r|\n))+")


def drop_statement(file: File, statement: ast.stmt) -> Edit:
    """Removes a statement, its own comments, and those above that name what it defines; `pass` keeps a block that had no other.

    Comments above stay where other code follows without an empty line: they may be about that, too.
    """
    start, end = file.lines(statement)
    lost = comments_between(file, start, end)
    is_only = len(file.block(statement)) == 1 and not isinstance(
        file.parents[statement], ast.Module
    )
    if is_only:
        kept = f"{indentation(file, statement)}pass{newline(file)}"
        return Edit(start, end, kept, tuple(lost))
    edit = remove_statement(file, statement)
    below = _EMPTY.match(file.text, end)
    if below is None and end < len(file.text):
        return Edit(edit.start, edit.end, "", tuple(lost))
    above = _above(file, statement)
    if not above or not _names(statement, above):
        return Edit(edit.start, edit.end, "", tuple(lost))
    first = sum(len(line) for line in above)
    begins = start - first
    end = below.end() if below is not None else end
    return Edit(begins, end, "", (*comments("".join(above)), *lost))


def _above(file: File, statement: ast.stmt) -> list[str]:
    """The lines of the comment block directly above a statement."""
    begins = line_start(file, statement)
    lines = file.text[:begins].splitlines(keepends=True)
    found: list[str] = []
    while lines and lines[-1].lstrip().startswith("#"):
        found.insert(0, lines.pop())
    return found


def _names(statement: ast.stmt, block: list[str]) -> bool:
    """Whether comments speak of what a statement defines: all words of its name are in them."""
    name = getattr(statement, "name", "")
    target = getattr(statement, "targets", [getattr(statement, "target", None)])[0]
    words = [word for word in (name or getattr(target, "id", "")).split("_") if len(word) > 2]
    text = "".join(block).lower()
    return bool(words) and all(word in text for word in words)
