"""One statement of a file on LibCST's nodes, which are found from the `ast` nodes of the same file.

The statement is parsed alone, where it stands: `if 1:` above it takes the place of the code around it, so that lines of
strings and comments keep their columns. Changes are made to nodes. What comes out are edits of those pieces of text whose
nodes changed, so that the edits of several rules in one statement can be made together.

LibCST takes longer to import than a small file to migrate: import this module where edits are made.
"""

import ast
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import libcst as cst

from fsdp_migrate.codemods.edit.changes import Change, Changes
from fsdp_migrate.codemods.edit.commas import comments_in, without
from fsdp_migrate.codemods.edit.differences import Span, differences, spans
from fsdp_migrate.codemods.edit.template import expression, in_brackets_of, statements
from fsdp_migrate.codemods.edit.text import Refused, in_steps, indentation, is_alone, newline, step
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import File

_KINDS: dict[type[ast.AST], type[cst.CSTNode] | tuple[type[cst.CSTNode], ...]] = {
    ast.expr: cst.BaseExpression,
    ast.stmt: (cst.BaseSmallStatement, cst.BaseCompoundStatement),
    ast.keyword: cst.Arg,
    ast.Starred: (cst.Arg, cst.StarredElement),
    ast.arg: cst.Param,
    ast.alias: cst.ImportAlias,
}


class Statement:
    """A statement whose nodes can be changed.

    Args:
        file: the file that it is in.
        node: the statement, or a node in it.

    Raises:
        Refused: for what LibCST cannot read.
    """

    def __init__(self, file: File, node: ast.AST) -> None:
        self.file = file
        self.statement = _whole(file, file.statement(node))
        self.is_alone = is_alone(file, self.statement)
        self._start, self._end = self._region()
        self._prefix = ""
        if self._is_indented():
            self._prefix = f"if 1:{newline(file)}"
        code = self._prefix + file.text[self._start : self._end]
        try:
            config = cst.PartialParserConfig(default_newline=newline(file))
            module = cst.parse_module(code, config)
        except cst.ParserSyntaxError as error:
            raise Refused(f"LibCST cannot read it: {error.message}") from None
        if module.code != code:
            raise Refused("LibCST does not write it as it is")
        self._module = module
        self._at: dict[Span, list[cst.CSTNode]] = {}
        for found, span in spans(module).items():
            self._at.setdefault(span, []).append(found)
        self._changes: dict[cst.CSTNode, list[Change]] = {}
        self._dropped: dict[cst.CSTNode, set[int]] = {}
        self._above: list[str] = []
        self._below: list[str] = []
        self._lost: list[str] = []
        self._footer: Sequence[cst.EmptyLine] = ()
        self._names: set[tuple[str, ast.stmt]] = set()

    def _region(self) -> Span:
        """The part of the file that is parsed: whole lines, with the comments that end its last block."""
        if not self.is_alone:
            return self.file.span(self.statement)
        start, end = self.file.lines(self.statement)
        if not hasattr(self.statement, "body"):
            return start, end
        margin = len(indentation(self.file, self.statement))
        deeper = re.compile(
            rf"(?:[ \t]*(?:\r\n|\r|\n))*[ \t]{{{margin + 1},}}#[^\r\n]*(?:\r\n|\r|\n|\Z)"
        )
        while found := deeper.match(self.file.text, end):
            end = found.end()
        return start, end

    def _is_indented(self) -> bool:
        return self.is_alone and bool(indentation(self.file, self.statement))

    def __getitem__(self, node: ast.AST) -> Any:
        """LibCST's node of an `ast` node of this statement.

        Raises:
            Refused: if the node is of another statement, of a kind that has no counterpart, or in an f-string.
        """
        if node is self.statement:
            return self._root
        kinds = next((k for kind, k in reversed(_KINDS.items()) if isinstance(node, kind)), ())
        start, end = [place - self._start + len(self._prefix) for place in self.file.span(node)]
        for found in self._at.get((start, end), ()):
            if isinstance(found, kinds):
                return found
        raise Refused(f"LibCST has no node for {type(node).__name__} there")

    @property
    def _line(self) -> Any:
        """The statement, with what else is on its line."""
        if not self._prefix:
            return self._module.body[0]
        return cst.ensure_type(self._module.body[0], cst.If).body.body[0]

    @property
    def _root(self) -> Any:
        line = self._line
        if isinstance(line, cst.SimpleStatementLine):
            return line.body[0]
        return line

    def change(self, node: ast.AST | cst.CSTNode, change: Change) -> None:
        """Lets a function make a new node out of one, in which other changes were made already."""
        changed: cst.CSTNode
        if isinstance(node, ast.AST):
            changed = self[node]
        else:
            changed = node
        self._changes.setdefault(changed, []).append(change)

    def replace(self, node: ast.expr, code: str, **parts: ast.AST) -> None:
        """Puts an expression in an expression's place.

        Args:
            node: what is replaced.
            code: what takes its place, in which names stand for `parts`.
            parts: nodes of this statement that the new code keeps, with the changes that are made in them.
        """
        own = self[node]
        self._keep(
            own, parts, lambda updated, kept: in_brackets_of(updated, expression(code, kept))
        )

    def instead(self, code: str, at: ast.stmt | None = None, **parts: ast.AST) -> None:
        """Puts statements in the place of this one, or of one in it; names in them stand for parts that they keep.

        A comment at its end stays at the last one's.

        Raises:
            Refused: if the statement shares its line with others.
        """
        own_step = step(self.file)
        self._keep(
            self._line_of(at or self.statement),
            parts,
            lambda updated, kept: statements(code, kept, updated, own_step),
        )

    def new_name(self, name: str, at: ast.stmt) -> str:
        """A name, or a longer one where a statement in this one was given that one before."""
        while (name, at) in self._names:
            name += "_"
        self._names.add((name, at))
        return name

    def before(self, statement: ast.stmt, code: str, **parts: ast.AST) -> None:
        """Puts statements in front of one in this one; names in them stand for parts that they keep."""
        own_step = step(self.file)

        def change(updated: Any, kept: dict[str, Any]) -> Any:
            first, *others = statements(code, kept, None, own_step)
            first = first.with_changes(leading_lines=updated.leading_lines)
            return cst.FlattenSentinel([first, *others, updated.with_changes(leading_lines=[])])

        self._keep(self._line_of(statement), parts, change)

    def comment(self, statement: ast.stmt, text: str) -> None:
        """Puts a comment above a statement in this one."""
        line = cst.EmptyLine(comment=cst.Comment(text))
        self.change(
            self._line_of(statement),
            lambda updated: updated.with_changes(leading_lines=[*updated.leading_lines, line]),
        )

    def give(self, call: ast.Call, name: str, value: str, before: Collection[str] = ()) -> None:
        """Gives a call one more argument by its name, in front of those with some names and of what is unpacked."""

        def change(updated: Any) -> Any:
            arguments = [*updated.args]
            later = [
                place
                for place, each in enumerate(arguments)
                if each.star or (each.keyword is not None and each.keyword.value in before)
            ]
            place = min(later, default=len(arguments))
            new = cst.Arg(
                keyword=cst.Name(name),
                value=cst.parse_expression(value),
                equal=cst.AssignEqual(
                    whitespace_before=cst.SimpleWhitespace(""),
                    whitespace_after=cst.SimpleWhitespace(""),
                ),
            )
            comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            if place < len(arguments):
                if place:
                    comma = arguments[place - 1].comma
                return updated.with_changes(
                    args=[*arguments[:place], new.with_changes(comma=comma), *arguments[place:]]
                )
            if not arguments:
                return updated.with_changes(args=[new])
            last = arguments[-1]
            if isinstance(last.comma, cst.MaybeSentinel):
                others = [*arguments[:-1], last.with_changes(comma=comma)]
                return updated.with_changes(args=[*others, new])
            between = last.comma
            if len(arguments) > 1:
                between = arguments[0].comma
            others = [*arguments[:-1], last.with_changes(comma=between)]
            return updated.with_changes(args=[*others, new.with_changes(comma=last.comma)])

        self.change(call, change)

    def remove(self, statement: ast.stmt) -> None:
        """Removes a statement in this one.

        Raises:
            Refused: if it shares its line with others, or comments stand above it.
        """
        line = self._line_of(statement)
        if any(map(comments_in, line.leading_lines)):
            raise Refused("there is a comment above it")
        self.change(line, lambda updated: cst.RemoveFromParent())

    def _line_of(self, statement: ast.stmt) -> Any:
        """The line of a statement, or the statement itself if it has a block."""
        if statement is self.statement:
            self._needs_lines()
            return self._line
        node = self[statement]
        if isinstance(node, cst.BaseCompoundStatement):
            return node
        pending: list[cst.CSTNode] = [self._line]
        while pending:
            line = pending.pop()
            if isinstance(line, cst.SimpleStatementLine) and [*line.body] == [node]:
                return line
            pending += line.children
        raise Refused("it shares its line with other code")

    def _keep(
        self,
        node: cst.CSTNode,
        parts: dict[str, ast.AST],
        change: Callable[[Any, dict[str, Any]], Any],
    ) -> None:
        """Lets a function make a new node out of one and parts of it."""
        inner = {name: self[part] for name, part in parts.items()}

        def changed(updated: Any) -> Any:
            kept = {}
            for name, part in inner.items():
                kept[name] = updated
                if part is not node:
                    kept[name] = part.visit(Changes(self._changes, part))
            return change(updated, kept)

        self.change(node, changed)

    def drop(self, item: ast.AST) -> list[str]:
        """Drops an argument of a call, an entry of a dictionary (by its key) or a context manager of a `with`.

        Returns:
            The comments that are removed with it: give them to `above` or to `lose`.
        """
        around = self.file.parents[item]
        if isinstance(around, ast.withitem):
            around = self.file.parents[around]
        row = self[around]
        wanted = self[item]
        fields = ("args", "elements", "items")
        items = next(getattr(row, name) for name in fields if hasattr(row, name))
        place = next(at for at, each in enumerate(items) if wanted in (each, *each.children))
        if row not in self._dropped:
            places = self._dropped[row] = set()
            self.change(row, lambda updated: without(updated, places)[0])
        self._dropped[row].add(place)
        _, comments = without(row, {place})
        return comments

    def lose(self, comments: Sequence[str]) -> None:
        """Allows that comments are lost, which only spoke of what is removed."""
        self._lost += comments

    def above(self, code: str) -> None:
        """Puts lines above the statement, below those that were put there before.

        Raises:
            Refused: if the statement shares its line with others.
        """
        self._needs_lines()
        self._above += in_steps(self.file, code).split("\n")

    def below(self, code: str) -> None:
        """Puts lines below the statement.

        Raises:
            Refused: if the statement shares its line with others.
        """
        self._needs_lines()
        self._below += in_steps(self.file, code).split("\n")

    def step_out(self, inner: ast.stmt | None = None) -> None:
        """Takes the block of this statement, or of one in it, out of it, as where a `with` is removed.

        Comments behind its head stand above this statement.

        Raises:
            Refused: if the block is on the statement's line, or an inner one ends with comments.
        """
        node = self._root
        if inner is not None:
            node = self[inner]
        block = node.body
        if not isinstance(block, cst.IndentedBlock):
            raise Refused("its block is on its line")
        for comment in comments_in(block.header):
            self.above(comment)
        if node is self._root:
            self._footer = block.footer
        elif any(map(comments_in, block.footer)):
            raise Refused("comments end its block")
        self.change(node, lambda updated: cst.FlattenSentinel(_taken_out(updated)))

    def _needs_lines(self) -> None:
        if not self.is_alone:
            raise Refused("it shares its line with other code")

    def edits(self) -> list[Edit]:
        """The edits that turn the statement's text into that of the changed nodes."""
        changed = cst.ensure_type(
            self._module.visit(Changes(self._changes, self._module)), cst.Module
        )
        changed = self._with_footer(changed)
        behind = self._start - len(self._prefix)
        margin = 0
        if self.is_alone:
            margin = len(indentation(self.file, self.statement))
        edits = [
            Edit(behind + start, behind + end, text)
            for start, end, text in differences(self._module, changed, margin)
        ]
        if self._above:
            edits.insert(0, Edit(self._start, self._start, self._as_lines(self._above)))
        if self._below:
            before = newline(self.file)
            if self.file.text[: self._end].endswith(("\n", "\r")):
                before = ""
            edits.append(Edit(self._end, self._end, before + self._as_lines(self._below)))
        if self._lost:
            edits.append(Edit(self._start, self._start, "", tuple(self._lost)))
        return edits

    def _as_lines(self, lines: Sequence[str]) -> str:
        indent = indentation(self.file, self.statement)
        end = newline(self.file)
        return "".join(f"{indent}{line}{end}" for line in lines)

    def _with_footer(self, changed: cst.Module) -> cst.Module:
        """The comments that end a block that was taken out, behind its statements."""
        if not self._footer:
            return changed
        if not self._prefix:
            return changed.with_changes(footer=[*self._footer, *changed.footer])
        around = cst.ensure_type(changed.body[0], cst.If)
        block = cst.ensure_type(around.body, cst.IndentedBlock)
        block = block.with_changes(footer=[*self._footer, *block.footer])
        return changed.with_changes(body=[around.with_changes(body=block)])


def _taken_out(statement: Any) -> list[Any]:
    """The statements of a block, without empty lines above the first one, below what stood above the block."""
    first: Any
    first, *others = statement.body.body
    lines = list(first.leading_lines)
    while lines and lines[0].comment is None:
        del lines[0]
    lines = [*statement.leading_lines, *lines]
    if lines == list(first.leading_lines):
        return [first, *others]
    return [first.with_changes(leading_lines=lines), *others]


def _whole(file: File, statement: ast.stmt) -> ast.stmt:
    """A statement, or the `if` that an `elif` belongs to."""
    above = file.parents[statement]
    while isinstance(above, ast.If) and file.source(statement).startswith("elif"):
        statement = above
        above = file.parents[above]
    return statement
