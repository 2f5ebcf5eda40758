"""Which parameters and gradients of a file go into a norm, a sum or a mean."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.nodes import any_below
from fsdp_migrate.facts.parameters import PARTS

_REDUCING = frozenset(
    """all amax amin any cosine_similarity count_nonzero dist dot max mean median min mse_loss nansum norm quantile std sum var
    vdot vector_norm""".split()  # noqa: SIM905
)
# Done to every element, between a gradient and its norm.
ELEMENTWISE = frozenset(
    {"abs", "bfloat16", "clone", "contiguous", "cpu", "cuda", "detach", "double", "float", "pow"}
    | {"square", "to"}
)
# Done to every element as well, but no norm is taken of what comes out.
_MASKS = frozenset({"isfinite", "isinf", "isnan", "logical_not", "sign"})
_FLATTENING = frozenset({"flatten", "ravel", "reshape", "view"})
_KEEPING = ELEMENTWISE | _FLATTENING | _MASKS | {""}
_JOINING = frozenset({"cat", "concat", "concatenate", "hstack"})


def measured(context: Context) -> Iterator[ast.expr]:
    """The names and gradients that go into a norm, a sum or a reduction over ranks."""
    every: dict[ast.AST, None] = {}
    for call in _measuring(context.file):
        every |= dict.fromkeys(ast.walk(call))
    for node in every:
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        around = context.file.parents[node]
        is_owner = isinstance(around, ast.Attribute) and around.attr in PARTS
        if (isinstance(node, ast.Name) or node.attr in PARTS) and not is_owner:
            if _is_measured(context, node):
                yield node


def is_torchs(context: Context, name: ast.expr) -> bool:
    """Whether an expression means something of torch by its path."""
    return any_below(context.dotted(name), "torch.")


def _measuring(file: File) -> Iterator[ast.AST]:
    """The calls of a file by which something can be measured."""
    for name in _REDUCING | _JOINING | {"all_reduce"}:
        for node in (*file.attributes.get(name, ()), *file.loads.get(name, ())):
            yield file.parents[node]


def _is_measured(context: Context, node: ast.expr) -> bool:
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
            return isinstance(parent, ast.Call) and is_torchs(context, parent.func)
        flat = flat or name in _FLATTENING
        is_kept = name in _KEEPING
        if isinstance(parent, ast.ListComp | ast.GeneratorExp | ast.List | ast.Tuple):
            is_kept = flat
        if not is_kept:
            return False
        child = parent
    return False


def _done_to(child: ast.AST, parent: ast.AST) -> str | None:
    """The name of the operation applied to a tensor one step up, empty for a step of syntax; None if it is no operation."""
    if isinstance(parent, ast.Attribute):
        return parent.attr
    if isinstance(parent, ast.Call) and child is not parent.func:
        if child in parent.args[:1]:
            return last_name(parent.func) or None
        return None
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.MatMult):
        return None
    of_syntax = ast.BinOp | ast.UnaryOp | ast.Compare | ast.Call
    of_syntax |= ast.ListComp | ast.GeneratorExp | ast.List | ast.Tuple
    if isinstance(parent, of_syntax):
        return ""
    return None
