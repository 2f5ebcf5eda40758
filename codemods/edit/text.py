"""Edits of a file's text, applied together; every byte outside of them stays as it was."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import NEWLINE, File, parsed

if TYPE_CHECKING:
    from fsdp_migrate.codemods.edit.kept import Kept

_EMPTY_LINES = re.compile(r"(?:[ \t]*(?:\r\n|\r|\n))+")
_GOES_ON = re.compile(r"[(\[{,][ \t]*(?:#.*)?\n")
_EMPTY_LINES_ABOVE = re.compile(r"(?m)(?:^[ \t]*(?:\r\n|\r|\n))+\Z")
_EMPTY_ABOVE = re.compile(r"(?:\A|(?:^|\n)(?:[^#\n]*:)?[ \t]*\r?\n)\Z")  # or the head of a block


class Refused(Exception):
    """Edits that cannot be made without losing something; the message says what."""


def apply(text: str, edits: Iterable[Edit]) -> str:
    """The text after its edits, two insertions at one place in the given order.

    Raises:
        Refused: if two edits overlap, a comment would be lost, or the result does not parse.
    """
    edits = list(edits)
    if overlap(edits):
        raise Refused("two rewrites want the same code")
    after = spliced(text, edits)
    _check(text, after, [comment for edit in edits for comment in edit.lost])
    return after


def spliced(text: str, edits: Iterable[Edit], start: int = 0, end: int | None = None) -> str:
    """A text, or a part of it, after edits inside of it."""
    pieces = []
    for edit in _in_order(edits):
        pieces += [text[start : edit.start], edit.text]
        start = edit.end
    return "".join([*pieces, text[start:end]])


def origins(text: str, edits: Iterable[Edit]) -> tuple[int, ...]:
    """For each line of the text after its edits, the number of the line that it was, or that it was written for."""
    numbers = [1]
    position = 0
    line = 1
    last = "\n"
    for edit in (*_in_order(edits), Edit(len(text), len(text), "")):
        kept = text[position : edit.start]
        numbers += range(line + 1, line + kept.count("\n") + 1)
        line += kept.count("\n")
        numbers += [line] * edit.text.count("\n")
        line += text.count("\n", edit.start, edit.end)
        position = edit.end
        last = edit.text or kept or last
        if last.endswith("\n"):  # what comes next begins a line
            numbers[-1] = line
    return tuple(numbers)


def _in_order(edits: Iterable[Edit]) -> list[Edit]:
    """Edits by their places, each once, and those that only remove text and touch the same text as one."""
    found: list[Edit] = []
    for edit in sorted(dict.fromkeys(edits), key=lambda edit: (edit.start, edit.end)):
        before = edit
        if found:
            before = found[-1]
        if found and edit.start < before.end and not before.text + edit.text:
            found[-1] = before._replace(end=max(before.end, edit.end))
        else:
            found.append(edit)
    return found


def overlap(edits: Iterable[Edit]) -> bool:
    """Whether two of some edits want the same text."""
    return any(behind.start < edit.end for edit, behind in pairwise(_in_order(edits)))


def comments(text: str) -> list[str]:
    """The comments of a file, or of a part that begins and ends with whole tokens, in order."""
    return [comment for _, _, comment in comments_at(text)]


def comments_at(text: str) -> list[tuple[int, int, str]]:
    """The same, each with its line, counted from 1, and its column in characters, from 0.

    The text is put in parentheses, where the tokenizer does not look at indentation: a part need not have any, and
    below a line with nothing but a backslash it is taken for wrong. Every line ends in LF: the tokenizer knows no
    lone CR, at which it raises from Python 3.12 on.
    """
    if "#" not in text:
        return []
    lines = io.StringIO("(" + NEWLINE.sub("\n", text) + "\n)").readline
    found = []
    for token in tokenize.generate_tokens(lines):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            if line == 1:
                column -= 1  # of the parenthesis
            found.append((line, column, token.string))
    return found


def _check(before: str, after: str, may_go: Sequence[str]) -> None:
    try:
        parsed(after, "<migrated>")
        lost = Counter(comments(before)) - Counter(comments(after)) - Counter(may_go)
    except (SyntaxError, ValueError, tokenize.TokenError) as error:
        raise Refused(f"the result would not parse ({error})") from None
    if lost:
        raise Refused(f"the comment {next(iter(lost))!r} would be lost")


def newline(file: File) -> str:
    """The line ending of a file, its first one where they are mixed."""
    found = NEWLINE.search(file.text)
    if found:
        return found[0]
    return "\n"


def indentation(file: File, statement: ast.stmt) -> str:
    """The white space in front of a statement's first line, behind a form feed."""
    start, _ = file.lines(statement)
    line = file.text[start : file.span(statement)[0]]
    return line[: len(line) - len(line.lstrip())].rpartition("\f")[2]


def is_alone(file: File, statement: ast.stmt) -> bool:
    """Whether a statement has its lines to itself: no `a; b`, no `if x: statement`, no backslash that adds another line."""
    start, end = file.span(statement)
    _, last = file.lines(statement)
    behind = file.text[end:last].strip(" \t\r\n\f")
    before = file.text[line_start(file, statement) : start].strip(" \t\r\n\f\\")
    return not before and (not behind or behind.startswith("#"))


def line_start(file: File, statement: ast.stmt) -> int:
    """Where the line of a statement begins: a backslash above continues one."""
    starts = file.line_starts
    number = statement.lineno - 1
    while number:
        above = file.text[starts[number - 1] : starts[number]].strip()
        if above.startswith("#") or not above.endswith("\\"):
            break
        number -= 1
    return starts[number]


def insert_above(file: File, statement: ast.stmt, code: str, line_length: int | None = 88) -> Edit:
    """New statements on lines of their own, above a statement that has its lines to itself, and above its decorators."""
    first: ast.AST = statement
    match statement:
        case (
            ast.FunctionDef(decorator_list=[decorator, *_])
            | ast.AsyncFunctionDef(decorator_list=[decorator, *_])
            | ast.ClassDef(decorator_list=[decorator, *_])
        ):
            first = decorator
    start, _ = file.lines(first)
    return Edit(start, start, _laid_out(file, statement, code, line_length))


def replace_statement(
    file: File, statement: ast.stmt, code: str, line_length: int | None = 88
) -> Edit:
    """Other statements in a statement's place; a comment at its end stays at the last one's."""
    start, end = file.span(statement)
    made = _laid_out(file, statement, code, line_length)
    indent = indentation(file, statement)
    return Edit(start, end, made.removeprefix(indent).rstrip("\r\n"))


def remove_statement(
    file: File, statement: ast.stmt, *, keeps_remark: bool = True, loses: Collection[str] = ()
) -> Edit:
    """Removes a statement and its lines; its comments stay, and `pass` replaces the only statement of a block.

    Of empty lines above and below it the longer side stays; of a file's or block's first statement, none.

    Args:
        keeps_remark: whether the comment behind its end stays as well.
        loses: comments in it that are removed as well.
    """
    start, end = file.lines(statement)
    last = end if keeps_remark else file.span(statement)[1]
    indent = indentation(file, statement)
    end_of_line = newline(file)
    inside = comments_between(file, start, last)
    kept = [indent + comment for comment in inside if comment not in loses]
    if len(file.block(statement)) == 1 and not isinstance(file.parents[statement], ast.Module):
        kept.append(f"{indent}pass")
    below = _EMPTY_LINES.match(file.text, end)
    if below and not kept and _EMPTY_ABOVE.search(file.text[:start]):
        end = below.end()
        above = _EMPTY_LINES_ABOVE.search(file.text[:start])
        if above and file.block(statement)[0] is not statement:
            kept = [""] * max(0, _count(below[0]) - _count(above[0]))
    lost = [each for each in inside if each in loses] + comments_between(file, last, end)
    return Edit(start, end, "".join(line + end_of_line for line in kept), tuple(lost))


def _count(lines: str) -> int:
    return len(lines.splitlines())


def comments_between(file: File, start: int, end: int) -> list[str]:
    """The comments in a part of a file that begins and ends with whole tokens."""
    return comments(file.text[start:end])


def _laid_out(file: File, statement: ast.stmt, code: str, line_length: int | None) -> str:
    """Generated statements, indented as a statement is, and formatted by black unless `line_length` is None."""
    indent = indentation(file, statement)
    own: list[Kept] = []
    if line_length is not None:
        code, own = _formatted(file, code, max(line_length - len(indent), 40))
    made = in_steps(file, code.rstrip("\n"))
    made = re.sub(r"^(?=.)", indent, made, flags=re.MULTILINE)
    for each in own:
        made = each.put_in(made)
    return newline(file).join(made.split("\n")) + newline(file)


def _formatted(file: File, code: str, width: int) -> tuple[str, list[Kept]]:
    """Generated code as black has it, with names for expressions of the file that keep their lines, and these."""
    code = NEWLINE.sub("\n", code)
    if _GOES_ON.search(code) is None:
        return formatted(code, width), []
    from fsdp_migrate.codemods.edit.kept import kept

    named, own = kept(file.text, code, width, lambda each: formatted(each, width))
    return formatted(named, width), own


def in_steps(file: File, code: str) -> str:
    """Generated code, indented in the file's own steps: by tabs, or by two spaces."""
    if '"""' in code or "'''" in code:  # text of the user's, perhaps
        return code
    own = step(file)
    return re.sub(r"(?m)^(?: {4})+", lambda found: own * (len(found[0]) // 4), code)


def step(file: File) -> str:
    """The indentation of the first block at the top of a file; four spaces where there is none."""
    for node in file.tree.body:
        match node:
            case ast.stmt(body=[first, *_]) if is_alone(file, first):  # type: ignore[misc]
                return indentation(file, first)
    return "    "


def formatted(code: str, line_length: int) -> str:
    """Code as black has it, quotes as they are: generated code holds expressions of the user's.

    A comma at the end of a list, which kept that on several lines where it was, does not do so in a new place.
    """
    from black import Mode, format_str  # takes longer to import than a small file to migrate
    from black.mode import TargetVersion
    from black.parsing import InvalidInput

    # A version that takes a comma behind `**kwargs`: black leaves it out where older ones might read the line.
    versions = {TargetVersion.PY310}
    mode = Mode(
        versions, line_length=line_length, string_normalization=False, magic_trailing_comma=False
    )
    # Black keeps the line ends of the first line.
    try:
        return format_str(NEWLINE.sub("\n", code), mode=mode)
    except InvalidInput as error:
        raise Refused(f"black cannot read the new code: {str(error).splitlines()[0]}") from None
