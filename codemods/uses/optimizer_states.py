"""FSDP1's functions for the states of optimizers: `FSDP.full_optim_state_dict` and its relatives."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.names import CLASS, OPTIMIZER_STATES
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP335", "optimizer-state-dict", "the runtime has FSDP1's functions for optimizer states"
)
RULES = (RULE,)

_STAYS = {
    "optim_state_dict": "the runtime follows the state-dict type currently set",
    "rekey_optim_state_dict": "the runtime turns parameter numbers into names, or names into numbers",
    "full_optim_state_dict": "the runtime gives each rank what FSDP1 gave it",
    "sharded_optim_state_dict": "the runtime gives each rank what FSDP1 gave it",
}


def find(context: Context) -> Iterator[Found]:
    """FSDP1's functions for optimizer states, by the class or by a model."""
    for name in OPTIMIZER_STATES:
        for attribute in context.file.attributes.get(name, ()):
            owner = attribute.value
            if context.fsdp1(owner) == CLASS or context.can_be_model(owner):
                message = _STAYS.get(
                    name, "the runtime returns what optimizer.load_state_dict takes"
                )
                yield Found(RULE, attribute, Action.RUNTIME, message)


def is_of_class(context: Context, call: ast.Call) -> bool:
    """Whether a call is one of FSDP1's class's own functions."""
    function = call.func
    return isinstance(function, ast.Attribute) and context.fsdp1(function.value) == CLASS
