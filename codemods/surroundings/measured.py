"""What a parameter goes into: a norm or a sum of its numbers, or a count that ranks add up."""

from __future__ import annotations

import ast

from fsdp_migrate.codemods.context import Context

_REDUCING = frozenset(
    {"amax", "amin", "max", "mean", "min", "norm", "std", "sum", "var", "vector_norm"}
)
# What stands between a gradient and its norm, and is done to every element.
_ELEMENTWISE = frozenset(
    {"abs", "bfloat16", "clone", "contiguous", "cpu", "cuda", "detach", "double", "float", "pow"}
    | {"square", "to"}
)
_FLATTENING = frozenset({"flatten", "ravel", "reshape", "view"})
_JOINING = frozenset({"cat", "concat", "concatenate", "hstack"})


def is_measured(context: Context, node: ast.expr) -> bool:
    """Whether a norm, a sum or a mean is taken of a parameter, directly or of what is done to each of its elements.

    Or whether it is flattened and joined with others into one vector, as it is for one norm of all.
    """
    module = context.module
    child: ast.AST = node
    flat = False
    for parent in module.ancestors(node):
        if isinstance(parent, ast.Attribute):
            if parent.attr in _REDUCING:
                return isinstance(module.parents[parent], ast.Call)
            flat = flat or parent.attr in _FLATTENING
            if parent.attr not in _ELEMENTWISE | _FLATTENING:
                return False
        elif isinstance(parent, ast.Call) and child is not parent.func:
            if child not in parent.args[:1]:
                return False
            paths = context.project.dotted(parent.func, module)
            names = {p.rpartition(".")[2] for p in paths if p.startswith("torch.")}
            if names & _REDUCING or (flat and names & _JOINING):
                return True
            flat = flat or bool(names & _FLATTENING)
            if not names & (_ELEMENTWISE | _FLATTENING):
                return False
        elif isinstance(parent, ast.BinOp):
            if not isinstance(parent.op, ast.Pow) or child is not parent.left:
                return False
        elif isinstance(parent, ast.ListComp | ast.GeneratorExp | ast.List | ast.Tuple):
            if not flat:
                return False
        elif not isinstance(parent, ast.Call):
            return False
        child = parent
    return False


def is_reduced(context: Context, node: ast.expr) -> bool:
    """Whether what a count goes into is summed over ranks, or multiplied by their number."""
    module = context.module
    statement = module.statement(node)
    scope = module.scope_of(statement)
    text = ast.unparse(statement)
    if "world_size" in text or "all_reduce" in text:
        return True
    names = _bound_by(statement)
    for call in module.calls:
        if module.scope_of(call) is not scope:
            continue
        given = {
            inner.id
            for argument in call.args
            for inner in ast.walk(argument)
            if isinstance(inner, ast.Name)
        }
        if not given & names:
            continue
        if any(
            path.startswith("torch.distributed.") and "reduce" in path
            for path in context.project.dotted(call.func, module)
        ):
            return True
        around = module.statement(call)
        if isinstance(around, ast.Assign) and around.value is call:
            names |= _bound_by(around)
    return False


def _bound_by(statement: ast.stmt) -> set[str]:
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
        targets = [statement.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}
