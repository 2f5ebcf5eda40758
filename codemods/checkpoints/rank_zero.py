"""Which code runs on rank 0 alone, and of which processes that is the first."""

from __future__ import annotations

import ast
from collections.abc import Collection

from fsdp_migrate.codemods.arguments.device_mesh import INIT_DEVICE_MESH, WORLD
from fsdp_migrate.codemods.constructor_call import Constructor
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.index.models import Site
from fsdp_migrate.index.module import Assigned, Module
from fsdp_migrate.index.order import block_of
from fsdp_migrate.index.project import Project
from fsdp_migrate.index.values import origin, origins

_RANK = frozenset({"torch.distributed.get_rank"})
_LIKELY = frozenset({"rank", "global_rank", "world_rank", "dist_rank", "RANK"})
_MAIN = frozenset({"is_main_process", "is_rank_zero", "_is_rank_zero", "is_global_zero", "is_main"})


def guard(context: Context, node: ast.AST) -> ast.If | None:
    """The `if rank == 0:` around a node: by what the rank is, or by its name."""
    child = node
    for parent in context.module.ancestors(node):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return None
        if (
            isinstance(parent, ast.If)
            and child in parent.body
            and _says(context, parent.test, False)
        ):
            return parent
        child = parent
    return None


def is_on_rank_zero(context: Context, call: ast.Call) -> bool:
    """Whether the value of a call is certainly read on rank 0 only."""
    module = context.module
    statement = module.parents[call]
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    if not isinstance(target, ast.Name):
        return False
    scope = module.scope_of(target)
    if scope is module.scope or len(scope.bindings.get(target.id, ())) != 1:
        return False
    binding = scope.bindings[target.id][0]
    if not isinstance(binding, Assigned):
        return False
    reads = context.readers(binding)
    return bool(reads) and all(_certainly(context, module, read) for read in reads)


def _certainly(context: Context, module: Module, node: ast.AST) -> bool:
    child = node
    for parent in module.ancestors(node):
        if isinstance(parent, ast.If) and child in parent.body:
            if _says(context, parent.test, True):
                return True
        if isinstance(child, ast.stmt):
            block = block_of(parent, child)
            for above in block[: block.index(child)] if child in block else ():
                if isinstance(above, ast.If) and isinstance(above.body[-1], ast.Return | ast.Raise):
                    if _is_not_zero(context, above.test):
                        return True
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return False
        child = parent
    return False


def _says(context: Context, test: ast.expr, certain: bool) -> bool:
    """Whether a condition holds on rank 0 only."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_says(context, value, certain) for value in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_rank(context, test.operand, certain)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        pair = [test.left, test.comparators[0]]
        zero = [v for v in pair if isinstance(v, ast.Constant) and v.value == 0]
        other = [v for v in pair if v not in zero]
        return len(zero) == 1 and _is_rank(context, other[0], certain)
    if certain:
        return False
    function = test.func if isinstance(test, ast.Call) else test
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in _MAIN


def _is_not_zero(context: Context, test: ast.expr) -> bool:
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    zero = test.comparators[0]
    return (
        isinstance(test.ops[0], ast.NotEq | ast.Gt)
        and isinstance(zero, ast.Constant)
        and zero.value == 0
        and _is_rank(context, test.left, True)
    )


def _is_rank(context: Context, expression: ast.expr, certain: bool) -> bool:
    """Whether an expression is the rank among all processes."""
    made = origin(context.project, expression, context.module)
    if made is not None and isinstance(made.node, ast.Call):
        call = made.node
        if not call.args and context.project.dotted(call.func, made.module) <= _RANK:
            return bool(context.project.dotted(call.func, made.module))
    if certain:
        return False
    name = (
        expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")
    )
    return name in _LIKELY


def is_of_all_ranks(context: Context, sites: frozenset[Site]) -> bool:
    """Whether rank 0 of a model is rank 0 of all: no constructor shards it over a group that may be smaller.

    `StateDictOptions` means the first of all processes. FSDP1's `rank0_only` of a model's configuration means the first of its
    process group (torch/distributed/fsdp/_state_dict_utils.py); for an optimizer it is the first of all.
    """
    plans = [context.plans.get(site.call) for site in sites if site.call is not None]
    return all(plan is None or _takes_all(plan.constructor) for plan in plans)


def _takes_all(constructor: Constructor) -> bool:
    for name, worlds in (("process_group", WORLD), ("device_mesh", INIT_DEVICE_MESH)):
        value = constructor.value(name)
        context = constructor.context
        if value is not None and not _is_world(context.project, value, context.module, worlds):
            return False
    return True


def _is_world(
    project: Project, value: ast.expr, module: Module, worlds: Collection[str], depth: int = 0
) -> bool:
    """Whether all that a value can be is None or of all ranks: by its name, or made by functions that say so."""
    for made in origins(project, value, module):
        if made.node is None:
            return False
        if isinstance(made.node, ast.Constant) and made.node.value is None:
            continue
        node = made.node.func if isinstance(made.node, ast.Call) else made.node
        paths = project.dotted(node, made.module)
        if paths and paths <= set(worlds):
            continue
        function = project.definition(node, made.module)
        if depth or function is None or isinstance(function.node, ast.ClassDef):
            return False
        returned = [n.value for n in ast.walk(function.node) if isinstance(n, ast.Return)]
        if not returned or not all(
            one is not None and _is_world(project, one, function.module, worlds, depth + 1)
            for one in returned
        ):
            return False
    return True
