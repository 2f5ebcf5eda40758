"""Comments above statements that edits take away: they are removed as well where they speak of nothing else.

Runs on the edits of all rules: several of them may have removed the statements that one comment is above.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from fsdp_migrate.codemods.edit.imports import is_directive
from fsdp_migrate.codemods.edit.text import comments, indentation
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.codemods.same import Made
from fsdp_migrate.facts.file import NEWLINE, File

# A title of what is below: `## Data`, `# --- Data ---`, `# DATA`, `# 2. Data`.
_TITLE = re.compile(r"##|#\s*(\d+[.):]|[Ss]tep\b)|.*[-=*~#]{3}|#[^a-z]*$")
_EMPTY = re.compile(r"(?:[ \t]*(?:\r\n|\r|\n))+")
_LINE = re.compile(r"([ \t]*)([^\r\n]*)")
_ENDS_WITH_EMPTY = re.compile(r"(?:\A|\n|\r)[ \t]*(?:\r\n|\r|\n)\Z")


@dataclass
class _Run:
    """A piece of a file that edits remove.

    Attributes:
        place: the finding that the first of them belongs to.
    """

    start: int
    end: int
    place: int


def without_stale_comments(file: File, made: Sequence[Made]) -> list[Made]:
    """The findings and their edits, with those of the comments at the finding of what is below them."""
    found = list(made)
    edits = [edit for _, own in made for edit in own]
    for run in _runs(made):
        added = _above(file, run, edits)
        if added:
            each, own = found[run.place]
            found[run.place] = each, [*own, *added]
    return found


def _runs(made: Sequence[Made]) -> list[_Run]:
    """The pieces that are removed, those that touch as one."""
    every = [(edit, place) for place, (_, own) in enumerate(made) for edit in own]
    runs: list[_Run] = []
    for edit, place in sorted(every, key=lambda each: (each[0].start, each[0].end)):
        if edit.text.strip() or edit.start == edit.end:
            continue
        if runs and edit.start <= runs[-1].end:
            runs[-1].end = max(runs[-1].end, edit.end)
        else:
            runs.append(_Run(edit.start, edit.end, place))
    return runs


def _above(file: File, run: _Run, edits: Sequence[Edit]) -> list[Edit]:
    """The edits that remove the comments above a piece, or the empty lines between a title there and what is below."""
    statement = _statement(file, run)
    if statement is None:
        return []
    indent = indentation(file, statement)
    block = _block(file, run.start, indent)
    start = run.start - sum(map(len, block))
    below = _EMPTY.match(file.text, run.end)
    is_open = file.text[: run.end].endswith(("\n", "\r")) and _ends(file, run, indent)
    others = [edit for edit in edits if start <= edit.start and edit.end <= run.start]
    if not block or others or not is_open or start == 0:
        return []
    lines = [line.strip() for line in block]
    if any(map(is_directive, lines)):
        return []
    if any(map(_is_title, lines)):
        if below is None or _indent_at(file.text, below.end()) != indent:
            return []
        return [Edit(run.end, below.end(), "")]
    found = [Edit(start, run.start, "", tuple(comments("".join(block))))]
    if below is not None and _begins_block(file.text, start):
        found.append(Edit(run.end, below.end(), ""))
    return found


def _is_title(line: str) -> bool:
    return _TITLE.match(line) is not None


def _statement(file: File, run: _Run) -> ast.stmt | None:
    """The statement that a piece begins with, if the piece has all of it."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.stmt):
            start, end = file.lines(node)
            if start == run.start and end <= run.end:
                return node
    return None


def _block(file: File, end: int, indent: str) -> list[str]:
    """The comment lines directly above a place, of one indentation."""
    found: list[str] = []
    for line in reversed(file.text[:end].splitlines(keepends=True)):
        if not line.startswith(f"{indent}#"):
            break
        found.insert(0, line)
    return found


def _ends(file: File, run: _Run, indent: str) -> bool:
    """Whether nothing follows a piece that the comments above it may be about: an empty line, a comment, the block's end."""
    removed = file.text[run.start : run.end]
    if _ENDS_WITH_EMPTY.search(removed) or _EMPTY.match(file.text, run.end):
        return True
    line = _LINE.match(file.text, run.end)
    assert line is not None
    return not line[2] or line[2].startswith("#") or len(line[1]) < len(indent)


def _indent_at(text: str, place: int) -> str:
    line = _LINE.match(text, place)
    assert line is not None
    return line[1]


def _begins_block(text: str, place: int) -> bool:
    """Whether an empty line or the head of a block is above a place."""
    above = NEWLINE.split(text[:place].rstrip(" \t"))
    return len(above) < 2 or not above[-2].strip() or above[-2].rstrip().endswith(":")
