"""New code on LibCST's nodes, in which names stand for nodes of the old code that go on as they are."""

from collections.abc import Mapping
from typing import Any

import libcst as cst

_ATOMS = (
    *(cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.List, cst.Dict, cst.Set, cst.ListComp),
    *(cst.DictComp, cst.SetComp, cst.SimpleString, cst.FormattedString, cst.Integer, cst.Float),
)


def expression(code: str, parts: Mapping[str, Any]) -> Any:
    """An expression with parts in the place of their names."""
    return cst.parse_expression(code).visit(_Filled(parts))


def statements(
    code: str, parts: Mapping[str, Any], old: Any, step: str
) -> cst.FlattenSentinel[Any]:
    """Statements with parts in the place of their names; the comment at the end of an old one stays at the last one's.

    Args:
        step: the indentation of the new blocks.
    """
    new: list[Any] = [line.visit(_Filled(parts, step)) for line in cst.parse_module(code).body]
    if getattr(old, "leading_lines", ()):
        new[0] = new[0].with_changes(leading_lines=old.leading_lines)
    both = isinstance(old, cst.SimpleStatementLine) and isinstance(new[-1], cst.SimpleStatementLine)
    if both:
        new[-1] = new[-1].with_changes(trailing_whitespace=old.trailing_whitespace)
    return cst.FlattenSentinel(new)


def in_brackets_of(old: Any, new: Any) -> Any:
    """A node that takes another one's place, in the brackets that were around that."""
    if isinstance(old, cst.Arg):
        return old.with_changes(value=new)
    return new.with_changes(lpar=[*old.lpar, *new.lpar], rpar=[*new.rpar, *old.rpar])


class _Filled(cst.CSTTransformer):
    """Puts parts in the place of their names, each once as the node that it is, then as copies."""

    def __init__(self, parts: Mapping[str, Any], step: str = "    ") -> None:
        super().__init__()
        self._parts = parts
        self._step = step
        self._used: set[str] = set()
        # Names that are no expressions, and those that stand alone: between commas, and behind `=`.
        self._words: set[cst.CSTNode] = set()
        self._between_commas: set[cst.CSTNode] = set()
        self._alone: set[cst.CSTNode] = set()

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self._words.add(node.attr)

    def visit_Arg(self, node: cst.Arg) -> None:
        self._between_commas.add(node.value)
        if node.keyword is not None:
            self._words.add(node.keyword)

    def visit_Assign(self, node: cst.Assign) -> None:
        self._alone.add(node.value)

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        return updated_node.with_changes(indent=self._step)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> Any:
        part = self._parts.get(updated_node.value)
        if part is None or original_node in self._words:
            return updated_node
        if isinstance(part, cst.Arg):
            part = part.value
        if updated_node.value in self._used:
            part = part.deep_clone()
        self._used.add(updated_node.value)
        is_open = original_node in self._between_commas
        is_open |= original_node in self._alone and not _has_lines(part)
        if is_open or part.lpar or isinstance(part, _ATOMS):
            return part
        return _in_new_brackets(part)


def _has_lines(node: cst.CSTNode) -> bool:
    """Whether an expression goes over several lines, which it may do between brackets."""
    is_line = isinstance(node, cst.ParenthesizedWhitespace)
    return is_line or any(map(_has_lines, node.children))


def _in_new_brackets(node: Any) -> Any:
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
