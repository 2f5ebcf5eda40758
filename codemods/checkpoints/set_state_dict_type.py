"""`FSDP.set_state_dict_type(model, ...)`: the type of a model's state dict from now on."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_migrate.codemods.checkpoints.local_state_dict import LOCAL, NO_LOCAL
from fsdp_migrate.codemods.checkpoints.runtime_function import members, renamed
from fsdp_migrate.codemods.checkpoints.state_dict_settings import Settings, settings
from fsdp_migrate.codemods.checkpoints.state_dict_types import is_resolved
from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.findings import Action

SET_TYPE = Rule(
    "FSDP332",
    "set-state-dict-type",
    "a type that is set becomes an option of the functions that it is for, or the runtime's",
    """It says what every later `state_dict()` of the model returns and every `load_state_dict()` takes. FSDP1's does nothing on
an FSDP2 model, without an error. Where every state-dict call of the model stands behind it in the same function, or in the
class that sets it in `__init__`, the type becomes their option and the call goes away. Elsewhere it is the runtime's, and the
model's own `state_dict()` and `load_state_dict()` stay: the runtime's type is in force there as FSDP1's was.""",
    (
        Example(
            "a type for what follows",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
state = model.state_dict()
model.load_state_dict(state)
""",
            """\
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

fully_shard(model)
state = get_model_state_dict(model)
set_model_state_dict(model, state)
""",
        ),
        Example(
            "a type for a whole run",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(model):
    return model.state_dict()


model = FSDP(model)
FSDP.set_state_dict_type(model, config.state_dict_type)
save(model)
""",
            """\
from fsdp_migrate.runtime import set_state_dict_type
from torch.distributed.fsdp import fully_shard


def save(model):
    return model.state_dict()


fully_shard(model)
set_state_dict_type(model, config.state_dict_type)
save(model)
""",
            message="the runtime's type",
        ),
        Example(
            "asking for the type",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
kind = FSDP.get_state_dict_type(model).state_dict_type
""",
            """\
from fsdp_migrate.runtime import get_state_dict_type
from torch.distributed.fsdp import fully_shard

fully_shard(model)
kind = get_state_dict_type(model).state_dict_type
""",
        ),
        Example(
            "a type that may or may not be set",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
if sharded:
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
state = model.state_dict()
""",
            message="then:",
        ),
        Example(
            "another class",
            """\
from fairscale.nn import FullyShardedDataParallel as FSDP

FSDP.set_state_dict_type(model, kind)
""",
            quiet=True,
        ),
    ),
)
RULES = (SET_TYPE,)


def find(context: Context) -> Iterator[Draft]:
    """Calls that set or read the type of a model's state dict."""
    for attribute, call, sites in members(context, "set_state_dict_type", "get_state_dict_type"):
        if attribute.attr == "get_state_dict_type":
            yield renamed(context, SET_TYPE, attribute, "the runtime's returns the same", sites)
            continue
        asked = None if call is None else settings(context, call)
        construct = "set_state_dict_type(...)"
        if isinstance(asked, Settings) and asked.kind == "LOCAL":
            yield Draft(LOCAL, attribute, Action.MANUAL, NO_LOCAL, construct, sites, silent=True)
        elif call is not None and is_resolved(context, call):
            statement = context.module.statement(call)
            yield Draft(
                SET_TYPE,
                call,
                Action.REWRITE,
                "the type is an option of the functions that get and set the state dict",
                construct,
                sites,
                edits=(context.removal(statement, comments_stay=True),),
                gone=(statement,),
                on_fsdp1=True,
            )
        else:
            message = "the runtime's type is in force from here on, for the model's own state_dict() as well"
            yield renamed(context, SET_TYPE, attribute, message, sites)


Command = command(find, __doc__ or "")
