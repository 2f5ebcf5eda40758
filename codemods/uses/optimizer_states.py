"""FSDP1's functions for the states of optimizers: `FSDP.full_optim_state_dict` and its relatives."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Found, Rule, bridged
from fsdp_migrate.facts.names import CLASS, OPTIMIZER_STATES
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP335",
    "optimizer-state-dict",
    "the runtime has FSDP1's functions for optimizer states",
    """They are gone from torch 2.14 (pytorch#191398). The runtime's save and load what FSDP1's did: states by parameter name,
whole or as shards, nothing before an optimizer's first step. `optim_state_dict` follows the type that is in force.

torch's own functions mean something else, without an error. `get_optimizer_state_dict` makes the states of an optimizer that
has none by a step with learning rate 0 (`_init_optim_state` in torch/distributed/checkpoint/state_dict.py), so that a program
which saves before it trains counts a step more; where a step came before, the two are the same, and a person may write it.
`set_optimizer_state_dict` counts FSDP1's `step` tensor, one for all parameters of a flat parameter, once for each of them, and
fails for optimizers without states, such as plain SGD.""",
    (
        bridged(
            "saving for rank 0",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(model, optimizer, rank):
    state = FSDP.full_optim_state_dict(model, optimizer)
    if rank == 0:
        torch.save(state, "optimizer.pt")
""",
            message="each rank what FSDP1 gave it",
        ),
        bridged(
            "loading, and names that live on",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def load(model, optimizer, full):
    sharded = FSDP.scatter_full_optim_state_dict(full, model)
    optimizer.load_state_dict(sharded)
    del full, sharded
""",
            message="optimizer.load_state_dict",
        ),
    ),
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
