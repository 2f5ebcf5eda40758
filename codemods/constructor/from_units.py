"""A loop over `units`, which an earlier run wrote in the default form: in torch's form it is a constructor once more."""

import ast
import re

from fsdp_migrate.codemods.constructor.code import KEEPS
from fsdp_migrate.codemods.constructor.layout import Place
from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.names import RUNTIME


def place_of(context: Context, call: ast.Call) -> Place | None:
    """Where the statements go that take the place of a call of `units`; None if it is used in another way.

    `with like_fsdp1(model):`, `for module, options in units(model, ...):`, `fully_shard(module, **options)`.
    """
    loop = context.file.parents[call]
    block = context.file.parents.get(loop)
    model = keyword(call, "module", 0)
    match loop:
        case ast.For(body=[ast.Expr(value=ast.Call() as shards)]):
            is_loop = ast.unparse(shards.func) == "fully_shard"
        case _:
            is_loop = False
    if model is None or not is_loop or not isinstance(block, ast.With):
        return None
    if not is_block(context, block):
        return None
    is_whole = len(block.body) == 1 and context.is_alone(block)
    if is_whole:
        return Place(block, ast.unparse(model))
    return None


def whole(context: Context, call: ast.Call) -> ast.AST:
    """All that a call of `units` stands for: its block, if that is the tool's."""
    place = place_of(context, call)
    if place is None:
        return call
    return place.statement


def removed(context: Context, call: ast.Call) -> tuple[ast.AST, ...]:
    """The code around a call of `units` that its edits take away."""
    block = whole(context, call)
    if isinstance(block, ast.With):
        return tuple(item.context_expr for item in block.items)
    return ()


def is_block(context: Context, statement: ast.AST) -> bool:
    """Whether a statement is `with like_fsdp1(model):`."""
    match statement:
        case ast.With(items=[ast.withitem(context_expr=ast.Call(func=function))]):
            return f"{RUNTIME}.like_fsdp1" in context.dotted(function)
    return False


def without_remark(context: Context, statement: ast.stmt) -> list[Edit]:
    """The edit that takes away the comment which the default form writes above such a block."""
    start = context.file.lines(statement)[0]
    text = context.file.text
    found = re.search(rf"[ \t]*{re.escape(KEEPS)}(?:\r\n|\r|\n)\Z", text[:start])
    if found is None:
        return []
    return [Edit(found.start(), start, "", (KEEPS,))]
