"""What is done to a whole model behind its sharding: copies, new numbers for its parameters, other classes of modules."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.left.taken import is_known_as_whole
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP527",
    "after-sharding",
    "a sharded model cannot be copied, nor its modules replaced, and is initialized otherwise",
)
RULES = (RULE,)

_COPY = (
    "raises for a sharded model: copy it before that, or make another one and load the state dict"
)
_REPLACED = (
    "makes modules that FSDP2 does not know, which fail on their DTensors: convert before sharding"
)
_DRAWN = "draws other numbers for DTensors than for FSDP1's shards: initialize before sharding, or load a state dict"
_METHODS = {"init_weights": _DRAWN, "initialize_weights": _DRAWN, "reset_parameters": _DRAWN}


def find(context: Context) -> Iterator[Found]:
    """Calls of that kind with a sharded model."""
    of_fsdp2 = "fully_shard" in context.file.text and not context.references
    if of_fsdp2 or not context.models.shards(context.file):
        return
    for name, message in (("deepcopy", _COPY), ("convert_sync_batchnorm", _REPLACED)):
        for call in context.file.calls.get(name, ()):
            if call.args and context.can_be_model(call.args[0]):
                yield Found(RULE, call, Action.MANUAL, message, f"{last_name(call.func)}(...)")
    for name, message in _METHODS.items():
        for call in context.file.calls.get(name, ()):
            owner = getattr(call.func, "value", None)
            if (
                owner is not None
                and context.can_be_model(owner)
                and not is_known_as_whole(context, call)
            ):
                yield Found(RULE, call, Action.MANUAL, message, f"{name}(...)")
