"""A file's text after the edits of all rules, and what may take the place of a statement then."""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fsdp_migrate.codemods.edit.text import comments, indentation, is_alone, spliced
from fsdp_migrate.codemods.rule import Edit, Rule
from fsdp_migrate.facts.file import File


@dataclass(frozen=True, eq=False)
class Repeat:
    """Code that is there twice, or that nothing uses.

    Attributes:
        node: the construct that goes, or the `if` of which one branch stays.
        message: what the finding says.
        edit: what takes the place of the construct, and of all edits in it.
        gone: the code whose edits no longer count.
        docstring: that of the code that stays, with an edit, where it says what is no longer so.
        rule: whose finding it is; None for that of code that became equal.
    """

    node: ast.stmt
    message: str
    edit: Edit
    gone: tuple[ast.AST, ...]
    docstring: tuple[ast.expr, Edit] | None = None
    rule: Rule | None = None


@dataclass(frozen=True)
class After:
    """A file's text after edits."""

    file: File
    edits: Sequence[Edit]

    def changes(self, node: ast.AST) -> bool:
        """Whether edits change lines of a node."""
        region = self.file.lines(node)
        return any(is_inside(edit, region) for edit in self.edits)

    def is_separate(self, node: ast.stmt) -> bool:
        """Whether a statement has lines of its own without comments, and no edit is of these and others."""
        start, end = self.file.lines(node)
        if not is_alone(self.file, node) or comments(self.file.text[start:end]):
            return False
        for edit in self.edits:
            is_far = edit.end <= start or edit.start >= end
            is_between = edit.start == edit.end == end  # of this statement, or of the next one
            if is_between or not (is_far or is_inside(edit, (start, end))):
                return False
        return True

    def code(self, block: Sequence[ast.stmt]) -> str | None:
        """The code of some statements, at the margin; None where its layout is unusual."""
        if not is_alone(self.file, block[0]):
            return None
        start = self.file.lines(block[0])[0]
        end = self.file.lines(block[-1])[1]
        inside = [edit for edit in self.edits if start <= edit.start and edit.end <= end]
        text = spliced(self.file.text, inside, start, end)
        margin = indentation(self.file, block[0])
        lines = text.splitlines(keepends=True)
        if not all(line.startswith(margin) or not line.strip() for line in lines):
            return None
        return "".join(line.removeprefix(margin) for line in lines)

    @property
    def before(self) -> "After":
        """The text without the edits: what was the same before is as the program wants it."""
        return After(self.file, ())


Candidate = Callable[[After], Repeat | None]


def is_inside(edit: Edit, region: tuple[int, int]) -> bool:
    """Whether an edit changes text of a region, and does not insert at its start or end."""
    start, end = region
    is_at_edge = edit.start == edit.end and edit.start in (start, end)
    return start <= edit.start and edit.end <= end and not is_at_edge
