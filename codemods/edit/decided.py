"""Removes a test whose answer is always the same from the expression and the statement around it."""

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.edit.text import (
    Refused,
    comments_between,
    indentation,
    is_alone,
    newline,
    remove_statement,
)
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import File

# What may stand between a test and the statements that it decides.
_HEAD_END = re.compile(r"[\s)\\]*:")
_IF = re.compile(r"\)*\s+if\s+")


def outermost(file: File, test: ast.expr) -> ast.expr:
    """The largest expression whose value a test decides as a part of `not`, `and`, `or`, or of `a if test else b`."""
    parent = file.parents[test]
    while isinstance(parent, ast.UnaryOp | ast.BoolOp) or (
        isinstance(parent, ast.IfExp) and parent.test is test
    ):
        if isinstance(parent, ast.UnaryOp) and not isinstance(parent.op, ast.Not):
            break
        test = parent
        parent = file.parents[parent]
    return test


def decided(file: File, test: ast.expr, answer: bool) -> list[Edit]:
    """The edits that remove a test, and with it the code that never runs.

    Raises:
        Refused: where a comment would be lost, or the code has a layout that these edits do not know.
    """
    whole = outermost(file, test)
    parent = file.parents[whole]
    result = _folded(file, test, whole, answer)
    if isinstance(result, str):
        return [Edit(*file.span(whole), result)]
    if isinstance(parent, ast.If):
        if result:
            return list(_always(file, parent))
        return list(_never(file, parent))
    if isinstance(parent, ast.comprehension):
        if result:
            return [_without_condition(file, parent, whole)]
        return _refuse()
    return [Edit(*file.span(whole), str(result))]


def _refuse() -> list[Edit]:
    raise Refused("its layout is unusual")


def _folded(file: File, test: ast.expr, whole: ast.expr, answer: bool) -> str | bool:
    """The code of an expression without a test in it; True or False if nothing else decides."""
    if test is whole:
        return answer
    if comments_between(file, *file.span(whole)):
        raise Refused("the test contains a comment")
    from fsdp_migrate.codemods.edit.fold import folded  # imports LibCST

    return folded(file.source(whole), file.source(test), answer)


def _without_condition(file: File, loop: ast.comprehension, condition: ast.expr) -> Edit:
    """Removes ` if condition` from a comprehension."""
    before = [loop.iter, *loop.ifs]
    _, end = file.span(before[before.index(condition) - 1])
    start, last = file.span(condition)
    between = file.text[end:start]
    if not _IF.fullmatch(between):
        raise Refused("its layout is unusual")
    return Edit(end + len(between) - len(between.lstrip(")")), last, "")


# `if` #


def _never(file: File, statement: ast.If) -> Iterator[Edit]:
    """The edits of an `if` whose body never runs."""
    start, end = file.span(statement)
    _, last = file.lines(statement)
    is_elif = file.text.startswith("elif", start)
    if not is_elif and not is_alone(file, statement):
        raise Refused("the test shares its line")
    if not statement.orelse and not is_elif:
        yield remove_statement(file, statement)
        return
    rest = _rest(file, statement)
    kept_from = rest
    if kept_from is None:
        kept_from = end
    if comments_between(file, start, kept_from):
        raise Refused("the branch contains a comment")
    line = file.lines(statement)[0]
    if rest is None:
        yield Edit(line, last, "")
    elif is_elif:
        yield Edit(start, rest, "")
    elif file.text.startswith("elif", rest):
        yield Edit(start, rest + len("elif"), "if")
    else:
        yield from _one_step_out(file, statement, statement.orelse, rest)


def _rest(file: File, statement: ast.If) -> int | None:
    """Where the `elif` or `else` of an `if` begins; None if it has none."""
    if not statement.orelse:
        return None
    start = file.span(statement.orelse[0])[0]
    if file.text.startswith("elif", start) and isinstance(statement.orelse[0], ast.If):
        return start
    _, end = file.lines(statement.body[-1])
    found = re.compile(r"(?m)^[ \t]*(?=else\b)").search(file.text, end, start)
    if found is None:
        raise Refused("its layout is unusual")
    return found.end()


def _always(file: File, statement: ast.If) -> Iterator[Edit]:
    """The edits of an `if` whose body always runs."""
    start, _ = file.span(statement)
    _, last = file.lines(statement)
    rest = _rest(file, statement)
    is_elif = file.text.startswith("elif", start)
    if rest is not None:
        _, end = file.lines(statement.body[-1])
        if comments_between(file, end, last):
            raise Refused("the branch contains a comment")
        yield Edit(end, last, "")
    if is_elif:
        yield Edit(start, _head_end(file, statement.test, statement.body), "else:")
        return
    if not is_alone(file, statement):
        raise Refused("the test shares its line")
    yield from _one_step_out(file, statement, statement.body, None)


def _head_end(file: File, test: ast.expr, body: list[ast.stmt]) -> int:
    """The place behind the colon in front of a body."""
    _, end = file.span(test)
    colon = _HEAD_END.match(file.text, end, file.span(body[0])[0])
    if colon is None:
        raise Refused("the test contains a comment")
    return colon.end()


def _one_step_out(
    file: File, statement: ast.If, body: list[ast.stmt], rest: int | None
) -> Iterator[Edit]:
    """Moves the body that always runs to where its `if` begins, or its `else` at `rest`."""
    if not is_alone(file, body[0]):
        raise Refused("the test shares its line")
    start, _ = file.lines(statement)
    if rest is None:
        colon = _head_end(file, statement.test, body)
    else:
        colon = file.text.index(":", rest) + 1
    line = file.lines(body[0])[0]
    above = [at for at in file.line_starts if colon <= at <= line]
    kept = [indentation(file, statement) + each for each in comments_between(file, colon, above[0])]
    yield Edit(start, above[0], "".join(comment + newline(file) for comment in kept))
    step = len(indentation(file, body[0])) - len(indentation(file, statement))
    _, last = file.lines(body[-1])
    inside = _inside_strings(file, body)
    for at in file.line_starts:
        if above[0] <= at < last and at not in inside:
            margin = re.compile(r"[ \t]*").match(file.text, at)
            assert margin is not None
            width = min(step, len(margin[0]))
            if width:
                yield Edit(at, at + width, "")


def _inside_strings(file: File, body: list[ast.stmt]) -> set[int]:
    """The beginnings of lines that stand in a string."""
    found = set()
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.JoinedStr | ast.Constant) and node.end_lineno:
                found.update(file.line_starts[node.lineno : node.end_lineno])
    return found
