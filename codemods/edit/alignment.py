"""Arguments aligned with the opening parenthesis stay aligned when the function gets another name.

model = FSDP(model,                 model = fully_shard(model,
             device_id=0)                               device_id=0)
"""

from __future__ import annotations

import libcst as cst

_HANGING = (4, 8)
"""Indentations that arguments have for their own sake, wherever the parenthesis is."""


def realigned(call: cst.Call, columns: int) -> cst.Call:
    """Moves the lines of a call's arguments by `columns` if they are aligned with its parenthesis.

    For use before the function is replaced: its length tells aligned arguments from indented ones.
    """
    width = _aligned_at(call)
    if width is None or not columns:
        return call
    shift = _Shift(width, columns)
    args = [arg.visit(shift) for arg in call.args]
    return call.with_changes(args=args)


def _aligned_at(call: cst.Call) -> int | None:
    """How far the arguments' lines are indented, if that is where the parenthesis is."""
    if not isinstance(call.whitespace_before_args, cst.SimpleWhitespace):
        return None
    widths = set()
    for arg in call.args[:-1]:
        if not isinstance(arg.comma, cst.Comma):
            continue
        whitespace = arg.comma.whitespace_after
        if isinstance(whitespace, cst.ParenthesizedWhitespace):
            if not whitespace.indent or whitespace.last_line.value.strip(" "):
                return None
            widths.add(len(whitespace.last_line.value))
    function = cst.Module([]).code_for_node(call.func)
    if len(widths) != 1 or "\n" in function:
        return None
    (width,) = widths
    in_front = width - len(function) - len("(")
    # In front of an aligned call is nothing or at least `x = `.
    aligned = in_front == 0 or in_front >= 4
    return width if aligned and width not in _HANGING else None


class _Shift(cst.CSTTransformer):
    def __init__(self, width: int, columns: int) -> None:
        super().__init__()
        self._width = width
        self._columns = columns

    def _shifted(self, whitespace: cst.SimpleWhitespace) -> cst.SimpleWhitespace:
        # One column less is the closing parenthesis below the opening one.
        if len(whitespace.value) < self._width - 1 or whitespace.value.strip(" "):
            return whitespace
        return cst.SimpleWhitespace(" " * max(len(whitespace.value) + self._columns, 0))

    def leave_ParenthesizedWhitespace(
        self, original_node: cst.ParenthesizedWhitespace, updated_node: cst.ParenthesizedWhitespace
    ) -> cst.ParenthesizedWhitespace:
        if not updated_node.indent:
            return updated_node
        return updated_node.with_changes(last_line=self._shifted(updated_node.last_line))

    def leave_EmptyLine(
        self, original_node: cst.EmptyLine, updated_node: cst.EmptyLine
    ) -> cst.EmptyLine:
        if not updated_node.indent or not updated_node.comment:
            return updated_node
        return updated_node.with_changes(whitespace=self._shifted(updated_node.whitespace))
