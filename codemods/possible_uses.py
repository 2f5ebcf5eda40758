"""Methods called on what may be an FSDP1 model: where the analysis cannot follow, it says so."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.checkpoints.state_dict_bodies import governing
from fsdp_migrate.codemods.checkpoints.state_dict_calls import OTHERS
from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.module import Assigned, Opaque, Parameter

RULE = Rule(
    "FSDP020",
    "possible-use",
    "a method of something that may be an FSDP1 model",
    """The analysis follows every FSDP1 model forwards, but not through containers, unknown functions and attributes of unknown
objects. A call of one of the model's methods on something that cannot be told to be no model is listed, so that nobody saves
the shards of one rank unawares. `get_model_state_dict` and `set_model_state_dict` are right for plain models as well; `no_sync`
and `clip_grad_norm_` are no methods of an FSDP2 model, and fail there.""",
    (
        Example(
            "an object that cannot be told",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(trainer, path):
    torch.save(trainer.model.state_dict(), path)


model = FSDP(model)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard


def save(trainer, path):
    # fsdp-migrate: FSDP020 by hand: if this is the FSDP1 model, get_model_state_dict
    torch.save(trainer.model.state_dict(), path)


fully_shard(model)
""",
            message="get_model_state_dict",
        ),
        Example(
            "one model of several",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

models["net"] = FSDP(net)
for part in models.values():
    part.clip_grad_norm_(1.0)
""",
            """\
from torch.distributed.fsdp import fully_shard

models["net"] = fully_shard(net)
for part in models.values():
    # fsdp-migrate: FSDP020 by hand: if this is the FSDP1 model, clip_grad_norm_(model.parameters(), ...)
    part.clip_grad_norm_(1.0)
""",
            message="clip_grad_norm_(model.parameters()",
        ),
        Example(
            "an attribute of an object of which nothing is known",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, strategy):
        self.strategy = strategy

    def save(self):
        model = self.strategy.model
        return model.state_dict()


class Strategy:
    def __init__(self, net):
        self.model = FSDP(net)
""",
            """\
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, strategy):
        self.strategy = strategy

    def save(self):
        model = self.strategy.model
        # fsdp-migrate: FSDP020 by hand: if this is the FSDP1 model, get_model_state_dict
        return model.state_dict()


class Strategy:
    def __init__(self, net):
        self.model = fully_shard(net)
""",
            message="get_model_state_dict",
        ),
        Example(
            "a function of a module",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

models = [FSDP(net) for net in nets]
for part in models:
    torch.nn.utils.clip_grad_norm_(part, 1.0)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

models = [fully_shard(net) for net in nets]
for part in models:
    torch.nn.utils.clip_grad_norm_(part, 1.0)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_METHODS = {
    "state_dict": "get_model_state_dict",
    "load_state_dict": "set_model_state_dict",
    "clip_grad_norm_": "clip_grad_norm_(model.parameters(), ...)",
    "no_sync": "no_sync(model) of fsdp_migrate.runtime",
}


def find(context: Context) -> Iterator[Draft]:
    """Calls of the methods whose meaning changes, on receivers of which nothing is known."""
    around = context.project.connected(context.module)
    if not any(module in around for module, _ in context.models.constructors):
        return
    for call in context.module.calls:
        function = call.func
        if (
            isinstance(function, ast.Attribute)
            and function.attr in _METHODS
            and governing(context, call, function.value) is None
            and not context.models.sharded(function.value, context.module)
            and not context.project.dotted(function.value, context.module)
            and _may_be_model(context, function.value)
        ):
            message = f"if this is the FSDP1 model, {_METHODS[function.attr]}"
            yield Draft(RULE, call, Action.MANUAL, message, context.source(function), mark=True)


def _may_be_model(context: Context, receiver: ast.expr) -> bool:
    """Whether nothing says that a receiver is no FSDP1 model: its name, its class, or where its value was made."""
    last = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
    if any(word in last.lower() for word in OTHERS) or last in {"self", "super"}:
        return False
    if isinstance(receiver, ast.Call):
        return not (isinstance(receiver.func, ast.Name) and receiver.func.id == "super")
    if isinstance(receiver, ast.Attribute):
        if isinstance(receiver.value, ast.Name) and receiver.value.id == "self":
            return False  # what the class's own methods store there is followed
        return context.models.class_of(receiver.value, context.module) is None
    if isinstance(receiver, ast.Name):
        return _is_unseen(context, receiver)
    return True


def _is_unseen(context: Context, name: ast.Name) -> bool:
    """Whether a name's value comes from where the analysis cannot look: a loop, a parameter that no known call fills, or
    an attribute of an object of which nothing is known."""
    module = context.module
    found = module.lookup(name.id, module.scope_of(name))
    if found is None:
        return False
    for binding in found[1]:
        if isinstance(binding, Parameter) and not context.models.callers_of(binding.function):
            return True
        if isinstance(binding, Opaque) and isinstance(binding.node, ast.For | ast.comprehension):
            return True
        if isinstance(binding, Assigned) and not binding.path:
            value = binding.value
            if isinstance(value, ast.Attribute) and _may_be_model(context, value):
                if not context.project.dotted(value, module):
                    return True
    return False


Command = command(find, __doc__ or "")
