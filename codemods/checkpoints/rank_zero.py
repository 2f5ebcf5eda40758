"""What is certainly read on rank 0 alone, and of which processes that is the first."""

from __future__ import annotations

import ast
from collections.abc import Collection

from fsdp_migrate.codemods.arguments.device_mesh import INIT_DEVICE_MESH, WORLD
from fsdp_migrate.codemods.constructor_call import Constructor
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rank_guards import guard
from fsdp_migrate.index.models import Site
from fsdp_migrate.index.module import Assigned, Module
from fsdp_migrate.index.project import Project
from fsdp_migrate.index.values import origins


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
    return bool(reads) and all(guard(context, read, certain=True) for read in reads)


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
