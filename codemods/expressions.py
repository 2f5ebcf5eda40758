"""What an expression says by itself: its dotted name, what a call gives, how it is written."""

from __future__ import annotations

import ast


def dotted(node: ast.AST) -> str:
    """`self.model` of an attribute of names; the container of an element; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
        else:
            parts.clear()
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def is_dotted(node: ast.expr) -> bool:
    """Whether an expression is a name, or attributes of one: it can be written twice."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def values_given(call: ast.Call) -> list[ast.expr]:
    """All that a call gives, by position and by name."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def given_for(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """What a call gives for one parameter; None if nothing that is in sight."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position is None or position >= len(call.args):
        return None
    return call.args[position]


def enclosed(source: str) -> str:
    """The source of an expression as it can stand in a statement: in parentheses where it stood in the call's."""
    try:
        ast.parse(source, mode="eval")
    except SyntaxError:
        return f"({source})"
    return source


def shortened(source: str) -> str:
    """The source of an expression on one line, as a finding names it."""
    line = " ".join(source.split())
    return line if len(line) <= 40 else f"{line[:37]}..."
