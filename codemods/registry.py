"""All rules, by code."""

from __future__ import annotations

from functools import cache

from fsdp_migrate.codemods import (
    by_hand,
    class_checks,
    clip_grad_norm,
    constructor,
    cpu_offload,
    device_mesh,
    imports,
    mixed_precision,
    names,
    no_sync,
    optimizer_order,
    runtime_only,
    sharding_strategy,
    state_dict,
    state_dict_type,
    without_effect,
    wrap_policy,
    wrapped_module,
)
from fsdp_migrate.codemods.rule import Rule

# The codemods that look at files by themselves; those of arguments are asked by `constructor`.
CODEMODS = (
    constructor,
    class_checks,
    wrapped_module,
    no_sync,
    clip_grad_norm,
    state_dict,
    state_dict_type,
    optimizer_order,
    by_hand,
)
_ARGUMENTS = (
    sharding_strategy,
    device_mesh,
    cpu_offload,
    wrap_policy,
    without_effect,
    mixed_precision,
    runtime_only,
)


@cache
def all_rules() -> list[Rule]:
    """Every rule, in the order of codes."""
    modules = (*CODEMODS, *_ARGUMENTS, names, imports)
    return sorted((rule for module in modules for rule in module.RULES), key=lambda rule: rule.code)


def rule_for(code: str) -> Rule | None:
    """The rule with a code, in any case; None if there is none."""
    return next((rule for rule in all_rules() if rule.code == code.upper()), None)
