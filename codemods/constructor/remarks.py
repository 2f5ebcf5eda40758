"""The comments in a constructor's call: where they stand in the new code, and which go with what they speak of."""

import ast
import re
from bisect import bisect
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from itertools import takewhile

from fsdp_migrate.codemods.constructor.code import Code
from fsdp_migrate.codemods.constructor.construction import FORMER_NAMES, SIGNATURE, Construction
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.dictionaries import Argument
from fsdp_migrate.codemods.edit.text import comments, comments_between
from fsdp_migrate.codemods.imports import WITHOUT_EFFECT
from fsdp_migrate.facts.file import NEWLINE, File
from fsdp_migrate.facts.nodes import has_any


class Beside:
    """Puts the comments of one argument above the statements that its row adds.

    Made before the row is written.
    """

    def __init__(self, construction: Construction, argument: Argument, code: Code) -> None:
        self._comments = _of(construction, argument)
        self._code = code
        self._before = [list(block) for block in code.blocks]

    def put(self) -> None:
        """Puts them above the first new statement; a note of our own gives way to them."""
        for before, block in zip(self._before, self._code.blocks, strict=True):
            at = len(before)
            if not self._comments or len(block) == at or block[:at] != before:
                continue
            end = at
            if block[at].startswith("#"):
                end = at + 1
            block[at:end] = self._comments
            return


def _of(construction: Construction, argument: Argument) -> list[str]:
    """The comments above an argument of a call, and at the end of its line."""
    file = construction.context.file
    call = construction.call
    if argument.node not in call.keywords:
        return []
    start, end = file.span(argument.node)
    values = [*call.args, *call.keywords]
    ends = [file.span(each)[1] for each in values if file.span(each)[1] <= start]
    opening = max(ends, default=file.span(call.func)[1])
    # Only brackets, commas and comments stand between arguments.
    lines = [line.strip() for line in NEWLINE.split(file.text[opening:start])[1:]]
    last = NEWLINE.search(file.text, end)
    behind = ""
    if last is not None:
        behind = file.text[end : last.start()]
    found = [line for line in (*lines, behind.lstrip(" \t,)")) if line.startswith("#")]
    return [line.rstrip() for line in found]


@dataclass(frozen=True)
class _Item:
    """An argument of a call, or an entry of a dictionary.

    Attributes:
        goes: whether nothing of it is left.
        above: the comments on the lines directly above it.
        behind: the comment at the end of its line.
        begins: whether comments or an empty line are above it.
        line: the line that it ends on.
    """

    goes: bool
    above: list[str]
    behind: list[str]
    begins: bool
    line: int


def comments_of(
    file: File, around: ast.Call | ast.Dict, going: Collection[ast.AST]
) -> Counter[str]:
    """The comments of arguments or entries of which nothing is left.

    Such a comment is at the end of their line, or above the first of several that all go, up to the next comment or empty line.
    """
    items = _items(file, around, going)
    found = Counter[str]()
    for place, item in enumerate(items):
        if all(each.goes for each in items if each.line == item.line):
            found.update(item.behind)
        if not item.above or not item.goes:
            continue
        below = takewhile(lambda each: not each.begins, items[place + 1 :])
        if all(each.goes for each in below):
            found.update(item.above)
    return found


def _items(file: File, around: ast.Call | ast.Dict, going: Collection[ast.AST]) -> list[_Item]:
    opening, spans = _spans(file, around)
    if not spans:
        return []
    following = [start for start, _, _ in spans[1:]] + [file.span(around)[1]]
    found: list[_Item] = []
    for (start, end, node), until in zip(spans, following, strict=True):
        # Only brackets, commas and comments stand between them.
        lines = [line.strip() for line in NEWLINE.split(file.text[opening:start])[1:-1]]
        above = [*takewhile(lambda line: line.startswith("#"), reversed(lines))]
        rest = NEWLINE.split(file.text[end:until])[0].lstrip(" \t,)}")
        behind = [rest.rstrip()] if rest.startswith("#") else []
        line = bisect(file.line_starts, end)
        found.append(_Item(node in going, above[::-1], behind, bool(lines), line))
        opening = end
    return found


def _spans(file: File, around: ast.Call | ast.Dict) -> tuple[int, list[tuple[int, int, ast.AST]]]:
    """Where the items begin, and the place of each."""
    if isinstance(around, ast.Call):
        values = [*around.args, *around.keywords]
        spans = [(*file.span(each), each) for each in sorted(values, key=lambda e: file.span(e))]
        return file.span(around.func)[1], spans
    pairs = [(key or value, value) for key, value in zip(around.keys, around.values, strict=True)]
    return file.span(around)[0], [
        (file.span(key)[0], file.span(value)[1], key) for key, value in pairs
    ]


def of_entries(context: Context, dictionary: ast.Dict) -> Counter[str]:
    """The comments in a dictionary of arguments that are of those alone which have no effect."""
    file = context.file
    going: dict[ast.AST, str] = {}
    for key in dictionary.keys:
        match key:
            case ast.Constant(str(name)) if name in WITHOUT_EFFECT:
                going[key] = name
    found = comments_of(file, dictionary, going)
    for comment in comments_between(file, *file.span(dictionary)):
        if not found[comment] and any(_speaks_of(comment, name) for name in going.values()):
            found[comment] += 1
    return found


def remarks(
    construction: Construction, after: str, whole: ast.AST
) -> tuple[list[str], tuple[str, ...]]:
    """The comments in a call that stand above the new code, and those that go with the argument that they speak of.

    Args:
        after: the new code, with the comments of what stays.
        whole: what the new code takes the place of: the call, or its statement.
    """
    file = construction.context.file
    every = comments_between(file, *file.span(whole))
    if not every:
        return [], ()
    left = Counter(every) - Counter(comments(after))
    going = [argument for argument in construction.arguments if _goes(construction, argument)]
    beside = comments_of(file, construction.call, {argument.node for argument in going})
    kept = []
    gone = []
    for comment in every:
        if not left[comment]:
            continue
        left[comment] -= 1
        if beside[comment]:
            beside[comment] -= 1
            gone.append(comment)
        elif _is_about_call(comment) or any(_speaks_of(comment, each.name) for each in going):
            gone.append(comment)
        else:
            kept.append(comment)
    return kept, tuple(gone)


_DIRECTIVE = re.compile(r"#\s*(noqa|type:|pyright:|mypy:|pylint:|pyre-|fmt:)", re.IGNORECASE)
_OUT = re.compile(r"#\s*(\w+)\s*=\s*\S")


def _goes(construction: Construction, argument: Argument) -> bool:
    """Whether nothing of an argument is left under FSDP2."""
    constant = construction.constant(argument.value)
    return argument.name in WITHOUT_EFFECT or constant is None or constant is False


def _is_about_call(comment: str) -> bool:
    """Whether a comment speaks to a tool about FSDP1's call, or is one of its arguments that somebody took out."""
    out = _OUT.match(comment)
    return bool(_DIRECTIVE.match(comment)) or (
        out is not None and out[1] in (*SIGNATURE, *FORMER_NAMES)
    )


def _speaks_of(comment: str, name: str) -> bool:
    words = [word for word in name.split("_") if len(word) > 3]
    return has_any(comment.lower(), words)
