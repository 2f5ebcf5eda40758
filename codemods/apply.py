"""All edits of one file in one pass; a comment that loses its place goes to the statement that takes over."""

from __future__ import annotations

import io
import tokenize
from collections import Counter
from collections.abc import Sequence

import libcst as cst

from fsdp_migrate.codemods.edit.comments import as_lines, with_leading_comments
from fsdp_migrate.codemods.edit.imports import insert_imports
from fsdp_migrate.codemods.edit.moves import enclose, move_behind
from fsdp_migrate.codemods.edit.statements import ensure_body, parse_statements, replace_statement
from fsdp_migrate.codemods.rule import Edit, Edited, Enclose, Move
from fsdp_migrate.codemods.syntax import Refused as Refused
from fsdp_migrate.codemods.syntax import SyntaxTree
from fsdp_migrate.index.module import NEWLINE


def apply(
    tree: SyntaxTree,
    edits: Sequence[Edit],
    names: Sequence[tuple[str, str]] = (),
    line_length: int = 88,
    places: Sequence[Move | Enclose] = (),
) -> str:
    """The file's text after its edits.

    Args:
        places: statements that go elsewhere, after all other edits of theirs.
        names: (module, name) pairs to import where no import statement is edited for them.

    Raises:
        Refused: if two edits overlap, a comment would be lost, or the result does not parse.
    """
    by_node: dict[cst.CSTNode, list[Edit]] = {}
    for edit in edits:
        by_node.setdefault(edit.node, []).append(edit)
    _check_overlaps(tree, by_node)
    module = tree.module.visit(_Applier(tree, by_node, line_length, places))
    assert isinstance(module, cst.Module)
    if names:
        module = insert_imports(module, names, line_length)
    after = tree.text(module)
    _check_result(tree.source.text, after)
    return after


def _check_overlaps(tree: SyntaxTree, by_node: dict[cst.CSTNode, list[Edit]]) -> None:
    whole = {node for node, edits in by_node.items() if any(edit.whole for edit in edits)}
    for node, edits in by_node.items():
        if node in whole and len(edits) > 1:
            raise Refused("two rewrites want the same statement")
        above = tree.parents.get(node)
        while above is not None:
            if above in whole:
                raise Refused("a rewrite lies inside another")
            above = tree.parents.get(above)


class _Applier(cst.CSTTransformer):
    def __init__(
        self,
        tree: SyntaxTree,
        edits: dict[cst.CSTNode, list[Edit]],
        line_length: int,
        places: Sequence[Move | Enclose],
    ) -> None:
        super().__init__()
        self.tree = tree
        self.line_length = line_length
        self.edits = edits
        self.moves = [place for place in places if isinstance(place, Move)]
        self.managers: dict[cst.CSTNode, list[str]] = {}
        for place in places:
            if isinstance(place, Enclose):
                self.managers.setdefault(place.node, []).append(place.manager)
        # What statements have become that move, or that others move behind.
        ends = {node for move in self.moves for node in (move.node, move.behind)}
        self.ends: dict[cst.CSTNode, list[cst.BaseStatement]] = {node: [] for node in ends}
        touched = [*edits, *self.managers, *ends]
        self.above = set(touched)  # at or above an edit: there is nothing to do below the others
        for node in touched:
            while (parent := tree.parents.get(node)) is not None:
                self.above.add(parent)
                node = parent
        self.orphans: list[list[str]] = [[]]  # by statement, innermost last
        self.blank: set[cst.CSTNode] = set()  # blocks where a blank line went away with a statement
        self.carried: dict[
            cst.CSTNode, list[str]
        ] = {}  # by block: comments of a statement that went away

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.BaseStatement):
            self.orphans.append([])
        return node in self.above

    def on_leave(  # type: ignore[override]
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]:
        if isinstance(original_node, cst.BaseStatement):
            return self._leave_statement(original_node, updated_node)
        for edit in self.edits.get(original_node, ()):
            edited = edit.apply(updated_node)
            assert isinstance(edited, Edited)
            self.orphans[-1] += edited.orphans
            updated_node = _with_parentheses(updated_node, edited.node)
        if isinstance(original_node, cst.IndentedBlock | cst.Module):
            return self._leave_block(original_node, updated_node)
        return updated_node

    def _leave_statement(
        self, original: cst.CSTNode, updated: cst.CSTNode
    ) -> cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]:
        orphans = self.orphans.pop()
        block = self.tree.parents[original]
        if not isinstance(
            block, cst.IndentedBlock | cst.Module
        ):  # an `elif`: its `if` takes the comments
            self.orphans[-1] += orphans
            assert original not in self.edits
            return updated
        statements: list[cst.BaseStatement] = [updated]  # type: ignore[list-item]
        for edit in self.edits.get(original, ()):
            assert len(statements) == 1
            edited = edit.apply(statements[0])
            if isinstance(edited, Edited):
                orphans += edited.orphans
                statements = [edited.node]  # type: ignore[list-item]
            else:
                statements = list(edited.statements)
                orphans += edited.orphans
        if not statements:
            self.carried.setdefault(block, []).extend(orphans)
            if _starts_blank(original):
                self.blank.add(block)
            return cst.FlattenSentinel(statements)
        if len(statements) == 1:
            statements = self._fitted(original, statements[0])
        comments = [*self.carried.pop(block, []), *orphans]
        if comments:
            statements[0] = with_leading_comments(statements[0], comments)
        if block in self.blank:
            self.blank.remove(block)
            if not _starts_blank(statements[0]):
                lines = [cst.EmptyLine(indent=False), *getattr(statements[0], "leading_lines", ())]
                statements[0] = statements[0].with_changes(leading_lines=lines)
        if original in self.managers:
            module, indent = self.tree.module, self._indent(original)
            managers = self.managers[original]
            statements = [enclose(statements, managers, module, self.line_length, indent)]
        if original in self.ends:
            self.ends[original] = statements
        return cst.FlattenSentinel(statements)

    def _fitted(self, original: cst.CSTNode, updated: cst.BaseStatement) -> list[cst.BaseStatement]:
        """A one-line statement that its edits made too long, formatted; any other as it is."""
        if not isinstance(original, cst.SimpleStatementLine) or not isinstance(
            updated, cst.SimpleStatementLine
        ):
            return [updated]
        code = self.tree.module.code_for_node
        before, after = (
            code(line.with_changes(leading_lines=())).strip() for line in (original, updated)
        )
        indent = self._indent(original)
        room = self.line_length - indent
        if "\n" in after or len(after) <= room or len(before) > room:
            return [updated]
        bare = updated.with_changes(leading_lines=(), trailing_whitespace=cst.TrailingWhitespace())
        made = parse_statements(code(bare).strip(), self.tree.module, self.line_length, indent)
        return replace_statement(updated, made)

    def _indent(self, node: cst.CSTNode) -> int:
        depth = 0
        while (above := self.tree.parents.get(node)) is not None:
            depth += isinstance(above, cst.IndentedBlock)
            node = above
        return depth * len(self.tree.module.default_indent)

    def _leave_block(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.IndentedBlock | cst.Module)
        comments = self.carried.pop(original, [])
        if comments:
            updated = updated.with_changes(footer=[*as_lines(comments), *updated.footer])
        for behind in dict.fromkeys(m.behind for m in self.moves):
            if self.tree.parents[behind] is original:
                nodes = [m.node for m in self.moves if m.behind is behind]
                updated = updated.with_changes(body=self._moved(updated, nodes, behind))
        if isinstance(updated, cst.IndentedBlock):
            return ensure_body(updated)
        return _without_leading_blanks(original, updated)

    def _moved(
        self, block: cst.IndentedBlock | cst.Module, nodes: list[cst.CSTNode], behind: cst.CSTNode
    ) -> list[cst.CSTNode]:
        """The statements of a block, some of them behind another."""
        moving = {id(statement) for node in nodes for statement in self.ends[node]}
        in_order = [statement for statement in block.body if id(statement) in moving]
        return move_behind(block.body, in_order, self.ends[behind][-1])


def _without_leading_blanks(original: cst.CSTNode, updated: cst.Module) -> cst.Module:
    """A file whose first statement went away does not begin with the blank lines that followed it."""
    assert isinstance(original, cst.Module)
    if not original.body or not updated.body or updated.header or original.header:
        return updated
    first = updated.body[0]
    if _starts_blank(first) and not _starts_blank(original.body[0]):
        lines: list[cst.EmptyLine] = list(first.leading_lines)
        while lines and lines[0].comment is None:
            lines.pop(0)
        return updated.with_changes(
            body=[first.with_changes(leading_lines=lines), *updated.body[1:]]
        )
    return updated


def _starts_blank(statement: cst.CSTNode) -> bool:
    lines: Sequence[cst.EmptyLine] = getattr(statement, "leading_lines", ())
    return len(lines) > 0 and lines[0].comment is None


def _with_parentheses(old: cst.CSTNode, new: cst.CSTNode) -> cst.CSTNode:
    """The new expression in the old one's parentheses."""
    if (
        isinstance(old, cst.BaseExpression)
        and isinstance(new, cst.BaseExpression)
        and old.lpar
        and not new.lpar
    ):
        return new.with_changes(lpar=old.lpar, rpar=old.rpar)
    return new


def _check_result(before: str, after: str) -> None:
    try:
        compile(after, "<migrated>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise Refused(f"the result would not parse ({error})") from None
    lost = Counter(comments(before)) - Counter(comments(after))
    if lost:
        raise Refused(f"the comment {next(iter(lost))!r} would be lost")


def comments(text: str) -> list[str]:
    """The comments of a file, in order."""
    lines = io.StringIO(NEWLINE.sub("\n", text)).readline  # the tokenizer knows no lone CR
    return [
        token.string for token in tokenize.generate_tokens(lines) if token.type == tokenize.COMMENT
    ]
