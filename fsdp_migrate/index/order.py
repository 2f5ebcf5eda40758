"""What comes before what within one function, and what stands behind which test: enough to say which value a name holds."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from fsdp_migrate.index.module import Assigned, Module, Scope


def branches(module: Module, test: ast.expr) -> tuple[list[ast.AST], list[ast.AST]]:
    """What runs only if a test holds, and what runs only if it does not."""
    parent = module.parents[test]
    negated = isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not)
    node: ast.AST = test
    if negated:
        node, parent = parent, module.parents[parent]
    holds = fails = True  # whether the branch of the whole condition says so of this test
    if isinstance(parent, ast.BoolOp):
        holds, fails = isinstance(parent.op, ast.And), isinstance(parent.op, ast.Or)
        node, parent = parent, module.parents[parent]
    body: list[ast.AST] = []
    orelse: list[ast.AST] = []
    if isinstance(parent, ast.If) and parent.test is node:
        body, orelse = list(parent.body), list(parent.orelse)
    elif isinstance(parent, ast.IfExp) and parent.test is node:
        body, orelse = [parent.body], [parent.orelse]
    elif isinstance(parent, ast.Assert) and parent.test is node:
        body = _rest(module, parent)
    if isinstance(parent, ast.If) and leaves(
        parent.body
    ):  # an early exit: the rest is the other branch
        orelse += _rest(module, parent)
    body, orelse = body if holds else [], orelse if fails else []
    return (orelse, body) if negated else (body, orelse)


def _rest(module: Module, statement: ast.stmt) -> list[ast.AST]:
    """The statements that follow one in its block."""
    block = block_of(module.parents[statement], statement)
    return list(block[block.index(statement) + 1 :])


def leaves(block: list[ast.stmt]) -> bool:
    """Whether a block ends where what follows it does not run."""
    return isinstance(block[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def block_of(parent: ast.AST, statement: ast.stmt) -> list[ast.stmt]:
    """The statements among which one stands."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return block
    return []


def same_text(nodes: list[ast.AST], subject: ast.expr) -> list[ast.expr]:
    """The places below some nodes where a name or dotted name is read."""
    text = ast.dump(subject)
    return [
        inner
        for node in nodes
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name | ast.Attribute) and ast.dump(inner) == text
    ]


def _position(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _end(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "end_lineno", 0) or 0, getattr(node, "end_col_offset", 0) or 0


def after(load: ast.AST, statement: ast.AST) -> bool:
    """Whether one node stands behind another in the file."""
    return _position(load) >= _end(statement)


def share_a_loop(module: Module, statement: ast.AST, load: ast.AST) -> bool:
    """Whether a loop runs both, so that a load above the statement comes after it the next time round."""
    around = {
        id(n)
        for n in module.ancestors(statement)
        if isinstance(n, ast.For | ast.AsyncFor | ast.While)
    }
    child = load
    for node in module.ancestors(load):
        # What a loop runs over is read once, before the first time round.
        if id(node) in around and child is not getattr(node, "iter", None):
            return True
        child = node
    return False


def reaches(module: Module, scope: Scope, name: str, statement: ast.AST, load: ast.Name) -> bool:
    """Whether the value that `statement` gives to `name` can be the one that `load` reads, in the same scope."""
    if not after(load, statement):
        return share_a_loop(module, statement, load)
    if _opposite_branches(module, statement, load):
        return share_a_loop(module, statement, load)
    line = module.statement(statement)
    for binding in scope.bindings.get(name, ()):
        if not isinstance(binding, Assigned):
            continue
        later = module.statement(binding.target)
        between = later is not statement and after(later, statement) and after(load, later)
        if between and (
            later in block_of(module.parents[line], line) or _leads_to(module, later, load)
        ):
            return False  # overwritten on the way
    return True


def _leads_to(module: Module, statement: ast.stmt, node: ast.AST) -> bool:
    """Whether a node below a statement runs only after it: a statement around the node stands in the same block."""
    block = block_of(module.parents[statement], statement)
    return any(parent in block for parent in module.ancestors(node))


def _opposite_branches(module: Module, statement: ast.AST, load: ast.AST) -> bool:
    """Whether the two stand in different branches of one `if`, so that never both run in one pass."""
    branches = {}
    child: ast.AST = statement
    for parent in module.ancestors(statement):
        if isinstance(parent, ast.If) and child is not parent.test:
            branches[id(parent)] = child in parent.body
        child = parent
    child = load
    for parent in module.ancestors(load):
        if isinstance(parent, ast.If) and id(parent) in branches and child is not parent.test:
            return branches[id(parent)] != (child in parent.body)
        child = parent
    return False


def dominates(module: Module, statement: ast.stmt, node: ast.AST) -> bool:
    """Whether a statement has run whenever a node of the same function runs that stands behind it."""
    block = block_of(module.parents[statement], statement)
    around = {id(parent) for parent in module.ancestors(node)}
    return any(id(one) in around for one in block[block.index(statement) :])


def covers(block: Sequence[ast.stmt], statements: Sequence[ast.stmt]) -> bool:
    """Whether a block runs one of some statements, whatever its conditions say."""
    for statement in block:
        if statement in statements:
            return True
        if isinstance(statement, ast.With | ast.Try) and covers(statement.body, statements):
            return True
        if isinstance(statement, ast.If) and statement.orelse:
            if covers(statement.body, statements) and covers(statement.orelse, statements):
                return True
    return False
