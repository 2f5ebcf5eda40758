"""All rules, by code."""

from __future__ import annotations

from functools import cache

from fsdp_migrate.codemods import (
    apply_to_modules,
    arguments,
    asked_for,
    by_hand,
    checkpoints,
    class_checks,
    composable,
    constructor,
    contract,
    dynamic_names,
    enable_wrap,
    fsdp_modules,
    full_precision_eval,
    imports,
    indirect,
    loop,
    names,
    offload_backend,
    possible_uses,
    private_parts,
    summon_full_params,
    surroundings,
    tensor_parallel,
    wrapped_module,
)
from fsdp_migrate.codemods.optimizers import order
from fsdp_migrate.codemods.rule import Rule

# The codemods that look at files by themselves; those of arguments are asked by `constructor`.
CODEMODS = (
    constructor,
    indirect,
    enable_wrap,
    class_checks,
    wrapped_module,
    *loop.MODULES,
    *checkpoints.MODULES,
    possible_uses,
    order,
    summon_full_params,
    surroundings,
    fsdp_modules,
    apply_to_modules,
    offload_backend,
    full_precision_eval,
    composable,
    tensor_parallel,
    dynamic_names,
    asked_for,
    private_parts,
    by_hand,
)


# Those of code that uses FSDP2 already; they change nothing.
CONTRACT = contract.MODULES


@cache
def all_rules() -> list[Rule]:
    """Every rule, in the order of codes."""
    modules = (*CODEMODS, *arguments.MODULES, names, imports, *CONTRACT)
    return sorted((rule for module in modules for rule in module.RULES), key=lambda rule: rule.code)


def rule_for(code: str) -> Rule | None:
    """The rule with a code, in any case; None if there is none."""
    return next((rule for rule in all_rules() if rule.code == code.upper()), None)
