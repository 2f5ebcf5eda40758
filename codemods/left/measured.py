"""Whether a norm or a sum is taken of a tensor, and whether ranks add something up."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File, last_name

_REDUCING = frozenset(
    {"amax", "amin", "max", "mean", "min", "norm", "std", "sum", "var", "vector_norm"}
)
# Done to every element, between a gradient and its norm.
_ELEMENTWISE = frozenset(
    {"abs", "bfloat16", "clone", "contiguous", "cpu", "cuda", "detach", "double", "float", "pow"}
    | {"square", "to"}
)
_FLATTENING = frozenset({"flatten", "ravel", "reshape", "view"})
_KEEPING = _ELEMENTWISE | _FLATTENING | {""}
_JOINING = frozenset({"cat", "concat", "concatenate", "hstack"})


def measuring(file: File) -> Iterator[ast.AST]:
    """The calls of a file by which something can be measured."""
    for name in _REDUCING | _JOINING | {"all_reduce"}:
        for node in (*file.attributes.get(name, ()), *file.loads.get(name, ())):
            yield file.parents[node]


def is_measured(context: Context, node: ast.expr) -> bool:
    """Whether a norm, a sum or a mean is taken of a tensor, it is flattened into one vector, or reduced over ranks."""
    child: ast.AST = node
    flat = False
    for parent in context.file.ancestors(node):
        name = _done_to(child, parent)
        if name is None:
            return False
        if name in _REDUCING and isinstance(parent, ast.Attribute):
            return isinstance(context.file.parents[parent], ast.Call)
        if name in _REDUCING or (flat and name in _JOINING) or name == "all_reduce":
            return isinstance(parent, ast.Call) and _is_torchs(context, parent)
        flat = flat or name in _FLATTENING
        listed = isinstance(parent, ast.ListComp | ast.GeneratorExp | ast.List | ast.Tuple)
        if not (flat if listed else name in _KEEPING):
            return False
        child = parent
    return False


def _done_to(child: ast.AST, parent: ast.AST) -> str | None:
    """The name of the operation applied to a tensor one step up, empty for a step of syntax; None if it is no operation."""
    if isinstance(parent, ast.Attribute):
        return parent.attr
    if isinstance(parent, ast.Call) and child is not parent.func:
        return (last_name(parent.func) or None) if child in parent.args[:1] else None
    if isinstance(parent, ast.BinOp):
        return "" if isinstance(parent.op, ast.Pow) and child is parent.left else None
    of_syntax = ast.Call | ast.ListComp | ast.GeneratorExp | ast.List | ast.Tuple
    return "" if isinstance(parent, of_syntax) else None


def _is_torchs(context: Context, call: ast.Call) -> bool:
    return any(path.startswith("torch.") for path in context.dotted(call.func))


def reduces_over_ranks(context: Context, node: ast.AST) -> bool:
    """Whether the function around a node adds something up over ranks, or multiplies the node by their number."""
    function = context.file.function(node)
    for around in context.file.ancestors(node):
        if isinstance(around, ast.BinOp) and "world_size" in context.source(around):
            return True
    return any(
        "reduce" in last_name(call.func)
        and context.file.function(call) is function
        and _is_torchs(context, call)
        for call in context.file.of(ast.Call)
    )
