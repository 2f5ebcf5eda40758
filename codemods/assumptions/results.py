"""Whether a backward can start from the result of a forward, as far as the function around it shows."""

import ast
import re
from collections.abc import Sequence

from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.nodes import targets_of

_EVALUATES = re.compile(r"eval|valid|test", re.IGNORECASE)
_OF_TRAINERS = re.compile(r"_step$|_epoch_end$")
"""Methods that a trainer of a library calls, which decides about gradients."""

_NUMBERS = frozenset({"item", "tolist", "detach", "numpy", "argmax", "data"})
"""What has no graph any more."""
_FACTS = frozenset({"shape", "dtype", "device", "ndim", "size", "dim", "numel"})
_TELLS = re.compile(r"^(print|float|int|bool|str|len|isinstance|log\w*|info|debug|warning|write)$")
_COLLECTS = frozenset({"append", "extend", "add"})
_PASSED_ON = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Subscript, ast.IfExp, ast.Tuple, ast.List, ast.Dict, ast.Starred,
    ast.keyword,
)  # fmt: skip
_ENDS = (ast.Expr, ast.Compare, ast.FormattedValue, ast.If, ast.While, ast.Assert)


def never_go_backward(file: File, forward: ast.Call) -> bool:
    """Whether no backward starts from what a forward returns."""
    function = file.function(forward)
    body: ast.AST = file.tree
    name = ""
    if function is not None:
        body = function
        name = function.name
    if _OF_TRAINERS.search(name) or any(map(_goes_backward, ast.walk(body))):
        return False
    if _EVALUATES.search(name) and file.calls_in(body, "eval"):
        return True
    return _stays(file, forward)


def _goes_backward(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = last_name(node.func)
    return "backward" in name or name in ("grad", "set_grad_enabled")


def _stays(file: File, forward: ast.Call) -> bool:
    """Whether all that is made of a result becomes a number, is told, or is dropped."""
    waiting: list[ast.AST] = [forward]
    seen: set[ast.AST] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        following = _following(file, node)
        if following is None:
            return False
        waiting += following
    return True


def _following(file: File, node: ast.AST) -> list[ast.AST] | None:
    """What a value goes into; None if that is not known."""
    parent = file.parents[node]
    match parent:
        case ast.Attribute(attr=attribute):
            if attribute in _NUMBERS | _FACTS:
                return []
            return [parent]
        case ast.Call():
            return _into_call(file, node, parent)
        case ast.AugAssign(target=target):
            return _names(file, [target])
        case ast.For(target=target, iter=walked) if walked is node:
            return _names(file, [target])
        case ast.Assign() | ast.AnnAssign() if parent.value is node:
            return _names(file, targets_of(parent))
    if isinstance(parent, _ENDS):
        return []
    if isinstance(parent, _PASSED_ON):
        return [parent]
    return None


def _into_call(file: File, node: ast.AST, call: ast.Call) -> list[ast.AST] | None:
    """What a value goes into that is called, is an argument, or whose method is called."""
    if node is call.func:
        return [call]
    name = last_name(call.func)
    if _TELLS.match(name):
        return []
    if name in _COLLECTS and isinstance(call.func, ast.Attribute):
        return _names(file, [call.func.value])
    if isinstance(file.parents[call], ast.Expr):
        return None  # it may keep it
    return [call]


def _names(file: File, targets: Sequence[ast.expr]) -> list[ast.AST] | None:
    """Where variables are read; None for what is no variable."""
    found: list[ast.AST] = []
    for target in targets:
        elements = [target]
        if isinstance(target, ast.Tuple | ast.List):
            elements = target.elts
        for element in elements:
            if not isinstance(element, ast.Name):
                return None
            found += file.reads(element)
    return found
