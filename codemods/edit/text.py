"""Edits of a file's text, applied together; every byte outside of them stays as it was."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import NEWLINE, File, parsed

# Around an item with lines of its own: comments and blank lines above it, its comma and the comment at its end.
_ABOVE = re.compile(r"(?<![\\\r])(?:\r?\n[ \t]*(?:#[^\r\n]*)?)*\r?\n([ \t]*)\Z")
_EMPTY_LINES = re.compile(r"(?:[ \t]*\r?\n)+")
_EMPTY_ABOVE = re.compile(r"(?:^|\n)[ \t]*\r?\n\Z")
_BEHIND = re.compile(r"[ \t]*,[ \t]*(?:#[^\r\n]*)?(?=\r?\n)")


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
    _check(text, after)
    return after


def spliced(text: str, edits: Iterable[Edit], start: int = 0, end: int | None = None) -> str:
    """A text, or a part of it, after edits inside of it."""
    pieces = []
    for edit in _in_order(edits):
        pieces += [text[start : edit.start], edit.text]
        start = edit.end
    return "".join([*pieces, text[start:end]])


def _in_order(edits: Iterable[Edit]) -> list[Edit]:
    """Edits by their places, each once."""
    return sorted(dict.fromkeys(edits), key=lambda edit: (edit.start, edit.end))


def overlap(edits: Iterable[Edit]) -> bool:
    """Whether two of some edits want the same text."""
    return any(behind.start < edit.end for edit, behind in pairwise(_in_order(edits)))


def comments(text: str) -> list[str]:
    """The comments of a file, or of a part that begins and ends with whole tokens, in order."""
    if "#" not in text:
        return []
    return [token.string for token in tokens(text) if token.type == tokenize.COMMENT]


def tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """The tokens of a part of a file that begins and ends with whole ones, its lines counted from 1.

    The part is put in parentheses, where the tokenizer does not look at indentation: a part need not have any, and
    below a line with nothing but a backslash it is taken for wrong. Every line ends in LF: the tokenizer knows no
    lone CR, at which it raises from Python 3.12 on.
    """
    return tokenize.generate_tokens(io.StringIO("(" + NEWLINE.sub("\n", text) + "\n)").readline)


def _check(before: str, after: str) -> None:
    try:
        parsed(after, "<migrated>")
        lost = Counter(comments(before)) - Counter(comments(after))
    except (SyntaxError, ValueError, tokenize.TokenError) as error:
        raise Refused(f"the result would not parse ({error})") from None
    if lost:
        raise Refused(f"the comment {next(iter(lost))!r} would be lost")


def newline(file: File) -> str:
    """The line ending of a file, its first one where they are mixed."""
    found = NEWLINE.search(file.text)
    return found[0] if found else "\n"


def indentation(file: File, statement: ast.stmt) -> str:
    """The white space in front of a statement's first line, behind a form feed."""
    start, _ = file.lines(statement)
    line = file.text[start : file.span(statement)[0]]
    return line[: len(line) - len(line.lstrip())].rpartition("\f")[2]


def is_alone(file: File, statement: ast.stmt) -> bool:
    """Whether a statement has its lines to itself: no `a; b`, no `if x: statement`."""
    (start, end), (_, last) = file.span(statement), file.lines(statement)
    behind = file.text[end:last].strip(" \t\r\n\f\\")
    before = file.text[line_start(file, statement) : start].strip(" \t\r\n\f\\")
    return not before and (not behind or behind.startswith("#"))


def line_start(file: File, statement: ast.stmt) -> int:
    """Where the line of a statement begins: a backslash above continues one."""
    starts, number = file.line_starts, statement.lineno - 1
    while number:
        above = file.text[starts[number - 1] : starts[number]].strip()
        if above.startswith("#") or not above.endswith("\\"):
            break
        number -= 1
    return starts[number]


def insert_above(file: File, statement: ast.stmt, code: str, line_length: int | None = 88) -> Edit:
    """New statements on lines of their own, above a statement that has its lines to itself."""
    start, _ = file.lines(statement)
    return Edit(start, start, _laid_out(file, statement, code, line_length))


def replace_statement(
    file: File, statement: ast.stmt, code: str, line_length: int | None = 88
) -> Edit:
    """Other statements in a statement's place; a comment at its end stays at the last one's."""
    start, end = file.span(statement)
    made = _laid_out(file, statement, code, line_length)
    indent = indentation(file, statement)
    return Edit(start, end, made.removeprefix(indent).rstrip("\r\n"))


def remove_statement(file: File, statement: ast.stmt) -> Edit:
    """Removes a statement and its lines; its comments stay, and `pass` replaces the only statement of a block.

    Of empty lines above and below it one side goes as well.
    """
    start, end = file.lines(statement)
    indent, end_of_line = indentation(file, statement), newline(file)
    kept = [indent + comment for comment in comments_between(file, start, end)]
    if len(file.block(statement)) == 1 and not isinstance(file.parents[statement], ast.Module):
        kept.append(f"{indent}pass")
    below = _EMPTY_LINES.match(file.text, end)
    if below and not kept and _EMPTY_ABOVE.search(file.text[:start]):
        end = below.end()
    return Edit(start, end, "".join(line + end_of_line for line in kept))


def drop_items(text: str, spans: Sequence[tuple[int, int]], dropped: Sequence[int]) -> list[Edit]:
    """Removes some of the items between commas, in order and never all; an item on lines of its own takes its lines along."""
    edits: list[Edit] = []
    for first in (index for index in dropped if index - 1 not in dropped):
        last = next(index for index in dropped if index >= first and index + 1 not in dropped)
        start, end = spans[first][0], spans[last][1]
        before, after = _ABOVE.search(text, 0, start), _BEHIND.match(text, end)
        if before and after:
            start, end = before.start(), after.end()
        elif first == 0:
            end = spans[last + 1][0]
        else:
            start = spans[first - 1][1]
        edits.append(Edit(start, end, ""))
    return edits


def comments_between(file: File, start: int, end: int) -> list[str]:
    """The comments in a part of a file that begins and ends with whole tokens."""
    return comments(file.text[start:end])


def _laid_out(file: File, statement: ast.stmt, code: str, line_length: int | None) -> str:
    """Generated statements, indented as a statement is, and formatted by black unless `line_length` is None."""
    indent = indentation(file, statement)
    made = code if line_length is None else formatted(code, max(line_length - len(indent), 40))
    made = in_steps(file, made.rstrip("\n"))
    lines = [indent + line if line else line for line in made.split("\n")]
    return newline(file).join(lines) + newline(file)


def in_steps(file: File, code: str) -> str:
    """Generated code, indented in the file's own steps: by tabs, or by two spaces."""
    blocks = (getattr(node, "body", [])[:1] for node in file.tree.body)
    steps = (indentation(file, each) for block in blocks for each in block if is_alone(file, each))
    step = next(steps, "    ")
    if '"""' in code or "'''" in code:  # text of the user's, perhaps
        return code
    return re.sub(r"(?m)^(?: {4})+", lambda found: step * (len(found[0]) // 4), code)


def formatted(code: str, line_length: int) -> str:
    """Code as black has it, quotes as they are: generated code holds expressions of the user's."""
    from black import Mode, format_str  # takes longer to import than a small file to migrate
    from black.mode import TargetVersion

    # A version that takes a comma behind `**kwargs`: black leaves it out where older ones might read the line.
    versions = {TargetVersion.PY310}
    mode = Mode(versions, line_length=line_length, string_normalization=False)
    return format_str(
        NEWLINE.sub("\n", code), mode=mode
    )  # which keeps the line ends of the first line
