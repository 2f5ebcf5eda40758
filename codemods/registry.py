"""All rules, by code."""

from __future__ import annotations

from functools import cache

from fsdp_migrate.codemods import (
    apply_to_modules,
    arguments,
    asked_for,
    by_hand,
    class_checks,
    clip_branches,
    clip_grad_norm,
    clip_local_norm,
    composable,
    constructor,
    contract,
    direct_forward,
    distributed_checkpoint,
    dynamic_names,
    enable_wrap,
    fsdp_modules,
    full_precision_eval,
    grad_scaler,
    imports,
    indirect,
    leftover_gradients,
    names,
    no_sync,
    offload_backend,
    optimizer_order,
    optimizer_state,
    possible_uses,
    private_parts,
    rank_guard,
    saved_files,
    set_state_dict_type,
    state_dict,
    state_dict_context,
    summon_full_params,
    surroundings,
    tensor_parallel,
    wrapped_module,
)
from fsdp_migrate.codemods.rule import Rule

# The codemods that look at files by themselves; those of arguments are asked by `constructor`.
CODEMODS = (
    constructor,
    indirect,
    enable_wrap,
    class_checks,
    wrapped_module,
    no_sync,
    leftover_gradients,
    clip_branches,
    clip_grad_norm,
    clip_local_norm,
    state_dict,
    state_dict_context,
    set_state_dict_type,
    optimizer_state,
    distributed_checkpoint,
    rank_guard,
    saved_files,
    possible_uses,
    optimizer_order,
    summon_full_params,
    surroundings,
    fsdp_modules,
    direct_forward,
    apply_to_modules,
    offload_backend,
    full_precision_eval,
    grad_scaler,
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
