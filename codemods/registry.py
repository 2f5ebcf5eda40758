"""All rules, by code."""

from __future__ import annotations

from functools import cache

from fsdp_migrate.codemods import names, silenced, swap
from fsdp_migrate.codemods.constructor import ledger
from fsdp_migrate.codemods.left import (
    clip_local_norm,
    dynamic_names,
    hooks,
    parameters,
    private_names,
    wrapper_internals,
)
from fsdp_migrate.codemods.libraries import arguments
from fsdp_migrate.codemods.rule import Rule
from fsdp_migrate.codemods.uses import (
    classes,
    scaler,
    state_dicts,
    summon,
    training,
    unwrapping,
)

# Each looks at one file and yields what it finds; `names` and `swap` run after them, on what they leave.
CODEMODS = (
    ledger,
    state_dicts,
    training,
    classes,
    unwrapping,
    summon,
    scaler,
    private_names,
    wrapper_internals,
    dynamic_names,
    hooks,
    clip_local_norm,
    parameters,
    arguments,
)


@cache
def all_rules() -> list[Rule]:
    """Every rule, in the order of codes."""
    modules = (*CODEMODS, names, silenced, swap)
    return sorted((rule for module in modules for rule in module.RULES), key=lambda rule: rule.code)


def rule_for(code: str) -> Rule | None:
    """The rule with a code, in any case; None if there is none."""
    return next((rule for rule in all_rules() if rule.code == code.upper()), None)
