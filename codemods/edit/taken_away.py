"""Takes a statement away, with the comments that speak of it alone."""

import ast
import re
from collections.abc import Collection

from fsdp_migrate.codemods.edit.text import comments, line_start, remove_statement
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import File

_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+")
_STRATEGY = re.compile(r"shard|\bzero[- ]?[0-3]\b", re.IGNORECASE)
_EMPTY = re.compile(r"(?:[ \t]*(?:\r\n|\r|\n))+")


def drop_statement(file: File, statement: ast.stmt, loses: Collection[str] = ()) -> Edit:
    """Removes a statement, and the comments behind and above it that name what it defines, or a strategy.

    `pass` keeps a block that had no other statement. Its other comments stay, and those above it where other code follows
    without an empty line: they may be about that, too.

    Args:
        loses: comments in it that are removed as well.
    """
    start, end = file.lines(statement)
    remark = comments(file.text[file.span(statement)[1] : end])
    is_about = _names(statement, remark) or any(map(_STRATEGY.search, remark))
    edit = remove_statement(file, statement, keeps_remark=not is_about, loses=loses)
    below = _EMPTY.match(file.text, end)
    above = _above(file, statement)
    is_followed = below is None and end < len(file.text)
    if edit.text or is_followed or not above or not _names(statement, above):
        return edit
    begins = start - sum(len(line) for line in above)
    if below is not None:
        end = below.end()
    return Edit(begins, end, "", (*comments("".join(above)), *edit.lost))


def drop_with_comments(file: File, statement: ast.stmt, about: re.Pattern[str]) -> Edit:
    """Removes a statement with the comments in it, and those above it if they speak of something."""
    _, end = file.lines(statement)
    edit = remove_statement(file, statement)
    kept = edit.text.splitlines(keepends=True)
    inside = [line for line in kept if line.lstrip().startswith("#")]
    text = "".join(line for line in kept if line not in inside)
    begins = edit.start
    lost = comments("".join(inside))
    for above in without_comments_above(file, statement, about):
        begins = above.start
        lost += above.lost
    end = max(end, edit.end)
    if lost and not text and (below := _EMPTY.match(file.text, end)):
        if _is_first_in_block(file.text, begins):
            end = below.end()
    return Edit(begins, end, text, tuple(lost))


def without_comments_above(file: File, statement: ast.stmt, about: re.Pattern[str]) -> list[Edit]:
    """Removes the comments above a statement, if each of their sentences speaks of something; no edit if one does not."""
    block = _above(file, statement)
    lines = "".join(block)
    text = " ".join(line.strip().lstrip("# ") for line in block)
    sentences = _SENTENCE_END.split(text)
    if not all(map(about.search, sentences)):
        return []
    begins = line_start(file, statement)
    return [Edit(begins - len(lines), begins, "", tuple(comments(lines)))]


def _is_first_in_block(text: str, start: int) -> bool:
    """Whether nothing but the head of a block is above a place."""
    above = text[:start].rstrip("\r\n")
    return above.endswith(":") and text[len(above) : start].count("\n") <= 1


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
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            pass
        case ast.Assign(targets=[ast.Name(id=name), *_]) | ast.AnnAssign(target=ast.Name(id=name)):
            pass
        case ast.AugAssign(target=ast.Name(id=name)) | ast.For(target=ast.Name(id=name)):
            pass
        case _:
            return False
    words = [word for word in name.split("_") if len(word) > 2]
    text = "".join(block).lower()
    return bool(words) and all(word in text for word in words)
