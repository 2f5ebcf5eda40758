"""States of optimizers in files that each rank writes and reads by itself: FSDP1's held flat shards, FSDP2's hold DTensors."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.left.taken import taken
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.facts.names import OPTIMIZER_STATES
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP336",
    "optimizer-files",
    "optimizer.state_dict() has a rank's shards: its files are not FSDP1's",
)
RULES = (RULE,)

_SAVED = (
    "is saved with this rank's shards as DTensors, which only as many ranks of FSDP2 can load: the runtime's optim_state_dict,"
    " or get_optimizer_state_dict, has whole states"
)
_LOADED = (
    "takes FSDP1's files of flat shards without an error, and the next step() raises: save whole states once with FSDP1, and"
    " load them by optim_state_dict_to_load"
)
# By these a function gives or takes states as FSDP means them.
_CONVERTED = (*OPTIMIZER_STATES, "get_optimizer_state_dict", "set_optimizer_state_dict")


def find(context: Context) -> Iterator[Found]:
    """`torch.save(optimizer.state_dict())` and `optimizer.load_state_dict(torch.load(...))`."""
    ways = (("state_dict", "torch.save", _SAVED), ("load_state_dict", "torch.load", _LOADED))
    for name, function, message in ways if context.models.shards(context.file) else ():
        for attribute in context.file.attributes.get(name, ()):
            call = context.file.parents[attribute]
            called = isinstance(call, ast.Call) and call.func is attribute
            if called and _is_optimizer(context, attribute.value):
                around = context.file.function(call) or context.file.tree
                used = [n for n in ast.walk(around) if isinstance(n, ast.Call)]
                is_converted = any(last_name(each.func) in _CONVERTED for each in used)
                if not is_converted and any(function in context.dotted(n.func) for n in used):
                    yield Found(RULE, attribute, Action.MANUAL, message)


def _is_optimizer(context: Context, owner: ast.expr) -> bool:
    """Whether what has the state is an optimizer by its name or its making, and not known to be another model's."""
    optimized = taken(context).optimized(owner, context.file)
    return optimized or (optimized is None and "optim" in last_name(owner).lower())
