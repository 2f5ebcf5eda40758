"""Comments and docstrings that name what a file's code no longer uses once its edits are made.

Runs on the edits of all rules: a name is gone only where none of them leaves it.
"""

import ast
import re
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fsdp_migrate.codemods.context import Context, shortened
from fsdp_migrate.codemods.edit.imports import is_directive
from fsdp_migrate.codemods.edit.text import comments_at
from fsdp_migrate.codemods.imports import WITHOUT_EFFECT
from fsdp_migrate.codemods.rule import Edit, Found, Rule
from fsdp_migrate.codemods.same import Made
from fsdp_migrate.codemods.without_use import unread_parameters
from fsdp_migrate.facts.file import NEWLINE, File, parsed, words_in
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.findings import Action, Severity

RULE = Rule("FSDP023", "stale-comment", Severity.PRINTS)

_NAMED = "This {} names {}, which the code no longer uses. Correct it, or remove it."
_FLAT = "FSDP2 does not flatten parameters. Correct this {}, or remove it."
_RENAMED = "Now names {}, as the code does."
_REMOVED = "Removed: it is about {}, which FSDP2 does not have."

# Names with a successor that takes their place in a sentence.
_SUCCESSORS = {"MixedPrecision": "MixedPrecisionPolicy"}
# Methods of every module, and strategies that FSDP2 has without these names: a text may speak of them all the same.
_OF_BOTH = frozenset({"state_dict", "load_state_dict"}) | {
    "FULL_SHARD",
    "HYBRID_SHARD",
    "NO_SHARD",
    "SHARD_GRAD_OP",
}
# The pages of FSDP1 and FSDP2 in torch's documentation.
_PAGES = (
    "/fsdp.html#torch.distributed.fsdp.",
    "/distributed.fsdp.fully_shard.html#torch.distributed.fsdp.",
)
_WORD = re.compile(r"[^\W\d]\w*")
_NOT_ENGLISH = re.compile(r"\w_\w|[a-z][A-Z]")
_FLATTENS = re.compile(r"(?i)\bfsdp\b.*\bflat(ten|_?param)|\bflat(ten|_?param).*\bfsdp\b")


@dataclass(frozen=True)
class _Remark:
    """A comment behind code, comments on lines of their own below each other, or a docstring.

    Attributes:
        kind: what a finding calls it.
        start, end: its place in the text; of comments on lines of their own, with these lines.
        lines: what each of its lines says, by number.
        is_block: whether it is comments on lines of their own.
    """

    kind: str
    start: int
    end: int
    lines: dict[int, str]
    is_block: bool = False

    @property
    def text(self) -> str:
        return " ".join(self.lines.values())


def stale_words(context: Context, edits: Sequence[Edit], text: str) -> Iterator[Made]:
    """One finding for each comment and docstring, with an edit where it is removed or gets the new name.

    Args:
        text: the file's after all edits.
    """
    file = context.file
    after = parsed(text)
    left = _names(after) | _names_in_strings(after) | _OF_BOTH
    names_before = _names(file.tree)
    if CLASS not in left:
        names_before.update(WITHOUT_EFFECT)  # which an earlier run has removed
    unread = {each.node.arg for each in unread_parameters(context, text)}
    gone = {name for name in names_before - left | unread if _NOT_ENGLISH.search(name)}
    for remark in _remarks(file):
        names = _words(remark.text) & gone
        is_flat = CLASS not in left and _FLATTENS.search(remark.text)
        if not (names or is_flat) or not _stays(remark, edits):
            continue
        shown = " and ".join(f"`{name}`" for name in sorted(names))
        if not names:
            message = _FLAT.format(remark.kind)
            yield _found(file, _part(remark, _FLATTENS.search), Action.MANUAL, message), ()
        elif _is_of_changed_statement(file, remark, names, edits):
            lost = Edit(remark.start, remark.end, "", tuple(remark.lines.values()))
            yield _found(file, remark, Action.REWRITE, _REMOVED.format(shown)), [lost]
        elif renaming := _renaming(file, remark, names, left, edits):
            now = " and ".join(f"`{_SUCCESSORS[name]}`" for name in sorted(names))
            yield _found(file, remark, Action.REWRITE, _RENAMED.format(now)), [renaming]
        else:
            part = _part(remark, lambda line: _words(line) & gone)
            message = _NAMED.format(remark.kind, shown)
            yield _found(file, part, Action.MANUAL, message), ()


def _found(file: File, remark: _Remark, action: Action, message: str) -> Found:
    first, last = min(remark.lines), max(remark.lines)
    node = ast.Pass(lineno=first, col_offset=0, end_lineno=last, end_col_offset=0)
    line = file.text[slice(*file.lines(ast.Pass(lineno=last, end_lineno=last)))]
    node.end_col_offset = len(line.rstrip().encode())
    return Found(RULE, node, action, message, shortened(remark.text))


def _part(remark: _Remark, is_in: Callable[[str], object]) -> _Remark:
    """The lines of a remark from the first to the last one that something is in."""
    own = [number for number, line in remark.lines.items() if is_in(line)] or [*remark.lines]
    return replace(remark, lines={n: remark.lines[n] for n in range(min(own), max(own) + 1)})


def _words(text: str) -> set[str]:
    return {*_WORD.findall(text)}


def _names(tree: ast.AST) -> set[str]:
    """The names in code, also the keys of its dictionaries."""
    keys = [key for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys]
    return words_in(tree).union(*(map(_words_of, filter(None, keys))))


def _names_in_strings(tree: ast.AST) -> set[str]:
    """The words of all strings but docstrings: something may read a setting of that name."""
    nodes = [*ast.walk(tree)]
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    return set[str]().union(*[_words_of(node) for node in nodes if node not in docstrings])


def _words_of(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _words(node.value)
    return set()


def _stays(remark: _Remark, edits: Sequence[Edit]) -> bool:
    """Whether edits leave a remark, perhaps in another place."""
    around = [edit for edit in edits if _meet(edit, remark)]
    return all(line in edit.text for edit in around for line in remark.lines.values())


def _meet(edit: Edit, remark: _Remark) -> bool:
    return edit.start < remark.end and remark.start < edit.end


def _is_of_changed_statement(
    file: File, remark: _Remark, names: set[str], edits: Sequence[Edit]
) -> bool:
    """Whether comments are directly above code that an edit changes, and each names an argument without effect."""
    line_below = max(remark.lines) + 1
    if not remark.is_block or any(_meet(edit, remark) for edit in edits):
        return False
    is_below = line_below in [bisect(file.line_starts, edit.start) for edit in edits]
    of_nothing = names.intersection(WITHOUT_EFFECT)
    return is_below and all(_words(line) & of_nothing for line in remark.lines.values())


def _renaming(
    file: File, remark: _Remark, names: set[str], left: set[str], edits: Sequence[Edit]
) -> Edit | None:
    """The edit that gives the names of a comment their successors, if all have one that the code uses."""
    if remark.kind == "docstring" or any(_meet(edit, remark) for edit in edits):
        return None
    if not all(_SUCCESSORS.get(name) in left for name in names):
        return None
    text = file.text[remark.start : remark.end]
    for name in names:
        text = text.replace(f"{_PAGES[0]}{name}", f"{_PAGES[1]}{name}")
        text = re.sub(rf"\b{name}\b", _SUCCESSORS[name], text)
    return Edit(remark.start, remark.end, text, tuple(remark.lines.values()))


def _remarks(file: File) -> Iterator[_Remark]:
    """The docstrings and comments of a file, but for comments that speak to a tool."""
    for node in file.of(ast.Expr):
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            start, end = file.span(node.value)
            said = map(str.strip, NEWLINE.split(file.text[start:end]))
            yield _Remark("docstring", start, end, dict(enumerate(said, node.value.lineno)))
    for comments in _blocks(file):
        number, start, _ = comments[0]
        last = comments[-1]
        lines = {number: text for number, _, text in comments}
        is_block = not file.text[file.line_starts[number - 1] : start].strip()
        end = last.start + len(last.text)
        if is_block:
            start, end = file.lines(ast.Pass(lineno=number, end_lineno=last.number))
        yield _Remark("comment", start, end, lines, is_block)


class _Comment(NamedTuple):
    number: int
    start: int
    text: str


def _blocks(file: File) -> Iterator[list[_Comment]]:
    """The comments of a file, those on lines of their own below each other together."""
    block: list[_Comment] = []
    for comment in _comments(file):
        is_alone = not file.text[file.line_starts[comment.number - 1] : comment.start].strip()
        if block and not (is_alone and comment.number == block[-1].number + 1):
            yield block
            block = []
        block.append(comment)
        if not is_alone:
            yield block
            block = []
    if block:
        yield block


def _comments(file: File) -> Iterator[_Comment]:
    """The comments of a file, but for those that speak to a tool."""
    for number, column, comment in comments_at(file.text):
        if not is_directive(comment):
            yield _Comment(number, file.line_starts[number - 1] + column, comment)
