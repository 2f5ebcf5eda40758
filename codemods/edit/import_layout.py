"""An import statement as it is written: its names, the comments that belong to each, and its layout."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from fsdp_migrate.facts.file import File

if TYPE_CHECKING:
    from libcst import BaseParenthesizableWhitespace

INDENT = "    "
SortKey = tuple[object, ...]
Order = Callable[[str], SortKey]


@dataclass(frozen=True)
class Name:
    """A name in a statement.

    Attributes:
        text: as it is written: `a`, or `a as b`.
        row: the line that it shares with others; 0 for a new one, which shares none.
        above: the comments and blank lines above it.
        behind: the comment at the end of its line.
    """

    text: str
    row: int = 0
    above: tuple[str, ...] = ()
    behind: str = ""

    @property
    def local(self) -> str:
        """The name that is bound."""
        return self.text.split()[-1]

    @property
    def comments(self) -> list[str]:
        """Its comments."""
        return [*filter(None, self.above), *filter(None, [self.behind])]


@dataclass(frozen=True)
class Code:
    """A statement as it is written.

    Attributes:
        module: empty for `import a.b`, whose one name it is.
        block: whether the names are in brackets, on several lines.
        indent: in front of a line with names.
        hangs: whether the first name is on the line of the bracket.
        closing: what is in front of the bracket at the end: a line break and white space, or nothing.
        comma: whether there is one behind the last name.
        head, tail: the comments behind the opening bracket and above the closing one.
    """

    module: str
    names: tuple[Name, ...]
    block: bool = False
    indent: str = ""
    hangs: bool = False
    closing: str = ""
    comma: bool = False
    head: str = ""
    tail: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[bool, SortKey, SortKey]:
        """Where isort and ruff put it in its section."""
        first = self.names[0].text
        if self.module:
            return True, natural(self.module), by_kind(first)
        return False, natural(first), ()

    @property
    def comments(self) -> list[str]:
        """All comments inside."""
        inside = [comment for name in self.names for comment in name.comments]
        return [*filter(None, [self.head]), *inside, *filter(None, self.tail)]

    def on_one_line(self) -> str:
        """The code without its comments."""
        names = ", ".join(name.text for name in self.names)
        return f"from {self.module} import {names}" if self.module else f"import {names}"

    def exploded(self, base: str, comment: str = "") -> Code:
        """Each name on its line, with a comment behind the bracket."""
        names = tuple(replace(name, row=0) for name in self.names)
        return Code(self.module, names, True, base + INDENT, False, "\n" + base, True, comment)

    def __str__(self) -> str:
        if not self.block:
            return self.on_one_line()
        lines, rows = [], list(_rows(self.names))
        for row in rows:
            lines += [self.indent + each if each else "" for each in row[0].above]
            comma = "," if self.comma or row is not rows[-1] else ""
            names = ", ".join(name.text for name in row)
            lines.append(f"{self.indent}{names}{comma}{_behind(row[-1].behind)}")
        lines += [self.indent + each if each else "" for each in self.tail]
        hangs = self.hangs and not self.head and not rows[0][0].above
        opening = "(" if hangs else f"({_behind(self.head)}\n"
        body = "\n".join(lines)
        needs_line = bool(rows[-1][-1].behind or self.tail)
        closing = self.closing or ("\n" + self.indent if needs_line else "")
        return f"from {self.module} import {opening}{body.lstrip() if hangs else body}{closing})"


def _behind(comment: str) -> str:
    return f"  {comment}" if comment else ""


def _rows(names: Iterable[Name]) -> Iterable[list[Name]]:
    """The names that share a line, with nothing between them."""
    row: list[Name] = []
    for name in names:
        if row and (not name.row or name.row != row[-1].row or name.above or row[-1].behind):
            yield row
            row = []
        row.append(name)
    if row:
        yield row


@dataclass(frozen=True)
class _Gap:
    """What is between two names, or between a name and a bracket.

    Attributes:
        behind: the comment at the end of its first line.
        above: the comments and blank lines after that.
        indent: in front of what follows; None if that shares a line with what is before.
        comma: whether there is one.
    """

    behind: str
    above: tuple[str, ...]
    indent: str | None
    comma: bool = False


def read(file: File, node: ast.ImportFrom) -> Code:
    """A statement with its layout and its comments."""
    module = "." * node.level + (node.module or "")
    texts = [f"{each.name} as {each.asname}" if each.asname else each.name for each in node.names]
    gaps = _gaps(file.source(node)) if node.end_lineno != node.lineno else []
    if not gaps:  # nor a place for a comment
        return Code(module, tuple(map(Name, texts)))
    names = [
        Name(text, alias.end_lineno or 0, before.above, after.behind)
        for text, alias, (before, after) in zip(texts, node.names, pairwise(gaps), strict=True)
    ]
    first, last = gaps[0], gaps[-1]
    return Code(
        module,
        tuple(names),
        block=True,
        indent=next((gap.indent for gap in gaps[:-1] if gap.indent is not None), INDENT),
        hangs=first.indent is None,
        closing="" if last.indent is None else "\n" + last.indent,
        comma=last.comma,
        head=first.behind,
        tail=last.above,
    )


def _gaps(code: str) -> list[_Gap]:
    """What is around the names of a statement, from bracket to bracket; empty if it has no brackets."""
    import libcst as cst  # here, since most files need no more than another path

    line = cst.ensure_type(cst.parse_statement(code), cst.SimpleStatementLine)
    statement = cst.ensure_type(line.body[0], cst.ImportFrom)
    if statement.lpar is None or statement.rpar is None:
        return []
    assert not isinstance(statement.names, cst.ImportStar)
    gaps = [_gap(statement.lpar.whitespace_after)]
    for alias in statement.names:
        if alias.asname is not None:
            inside = _gap(alias.asname.whitespace_before_as, alias.asname.whitespace_after_as)
            comments = tuple(filter(None, (inside.behind, *inside.above)))
            gaps[-1] = replace(gaps[-1], above=(*gaps[-1].above, *comments))
        if isinstance(alias.comma, cst.Comma):
            found = _gap(alias.comma.whitespace_before, alias.comma.whitespace_after)
            gaps.append(replace(found, comma=True))
        else:
            gaps.append(_gap(statement.rpar.whitespace_before))
    return gaps


def _gap(*spaces: BaseParenthesizableWhitespace) -> _Gap:
    from libcst import ParenthesizedWhitespace

    lines: list[str] = []
    indent = None
    for space in spaces:
        indent = None
        if isinstance(space, ParenthesizedWhitespace):
            indent = space.last_line.value
            found = [space.first_line.comment, *(line.comment for line in space.empty_lines)]
            comments = [each.value if each else "" for each in found]
            lines += comments[1:] if lines and not comments[0] else comments
    behind, *above = lines or [""]
    return _Gap(behind, tuple(above), indent)


def by_kind(name: str) -> SortKey:
    """isort's and ruff's default: CONSTANTS, Classes, functions; each without regard to case, `a2` before `a10`."""
    constant = name.split()[0].isupper() and len(name) > 1
    return (0 if constant else 1 if name[:1].isupper() else 2, natural(name), name)


def order_of(names: Sequence[str]) -> Order | None:
    """The order that names are in: one of those that isort knows, or None."""
    keys: tuple[Order, ...] = (by_kind, lambda name: (natural(name), name), lambda name: (name,))
    return next((key for key in keys if sorted(names, key=key) == [*names]), None)


def natural(name: str) -> SortKey:
    """In any case, `layer2` before `layer10`."""
    return tuple(
        (int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", name.lower())
    )
