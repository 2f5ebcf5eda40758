"""FSDP1's methods, static functions and class, used on a module that FSDP2 has sharded."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.contract.facts import breach, holds, words_around
from fsdp_migrate.codemods.expressions import values_given
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.index.names import fsdp1_member

_HEADER = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard

for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
"""
RULE = Rule(
    "FSDP713",
    "fsdp1-member",
    "FSDP1's methods, functions and class do not know FSDP2's modules",
    """What FSDP1 offers looks for its own instances, of which an FSDP2 model has none. Seen on two ranks:

- without an error: `FSDP.summon_full_params(model)` gathers nothing, the parameters stay shards;
  `FSDP.set_state_dict_type(model, ...)` sets nothing; `FSDP.fsdp_modules(model)` is `[]`; `isinstance(model, FSDP)` is
  False;
- with an error: `with FSDP.state_dict_type(model, ...)` gives shards inside and ends in `KeyError: None`,
  `FSDP.optim_state_dict` is an AttributeError, and so are methods of the wrapper such as `model.no_sync()`,
  `model.clip_grad_norm_(...)`, and `model.module`.

The functions of `torch.distributed.checkpoint.state_dict`, `torch.nn.utils.clip_grad_norm_`, `set_requires_gradient_sync`
and `isinstance(model, FSDPModule)` take their places, and `fsdp_migrate.runtime` has `summon_full_params` and `no_sync`.""",
    (
        Example(
            "a static function",
            _HEADER + "with FSDP.summon_full_params(model):\n    print(model)\n",
            message="gathers nothing",
        ),
        Example(
            "a question of the class",
            _HEADER + "sharded = isinstance(model, FSDP)\n",
            message="FSDPModule",
        ),
        Example(
            "a method of the wrapper",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
with model.no_sync():
    model(batch).backward()
""",
            message="set_requires_gradient_sync",
        ),
        Example(
            "what was wrapped",
            """\
from torch import nn
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))


model = Net()
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
print(model.module)
""",
            message="the model is the module",
        ),
        Example(
            "FSDP2's own, and questions",
            """\
import torch
from torch.distributed.fsdp import FSDPModule, fully_shard

fully_shard(model)
model.set_requires_gradient_sync(True)
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
sharded = isinstance(model, FSDPModule)
inner = model.module if hasattr(model, "module") else model
""",
            quiet=True,
        ),
        Example(
            "a member that is tried",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
try:
    model.clip_grad_norm_(1.0)
except AttributeError:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
            quiet=True,
        ),
        Example(
            "DistributedDataParallel's",
            """\
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

if use_fsdp2:
    fully_shard(model)
else:
    model = DDP(model)
with model.no_sync():
    model(batch).backward()
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_STATE_DICT = "torch.distributed.checkpoint.state_dict"
_STATIC = {
    "summon_full_params": "gathers nothing, without an error: summon_full_params of fsdp_migrate.runtime",
    "set_state_dict_type": f"sets nothing, without an error: the functions of {_STATE_DICT}",
    "state_dict_type": f"gives shards, and a KeyError at its end: the functions of {_STATE_DICT}",
    "fsdp_modules": "is [], without an error: the FSDPModules of model.modules()",
    "optim_state_dict": "is an AttributeError: get_optimizer_state_dict",
    "optim_state_dict_to_load": "does not know FSDP2: set_optimizer_state_dict",
}
_METHODS = {
    "no_sync": "set_requires_gradient_sync, or no_sync(model) of fsdp_migrate.runtime",
    "clip_grad_norm_": "torch.nn.utils.clip_grad_norm_(model.parameters(), ...)",
    "summon_full_params": "summon_full_params of fsdp_migrate.runtime",
    "state_dict_type": f"the functions of {_STATE_DICT}",
    "set_state_dict_type": f"the functions of {_STATE_DICT}",
    "optim_state_dict": "get_optimizer_state_dict",
    "fsdp_modules": "the FSDPModules of model.modules()",
    "register_comm_hook": "reduce_dtype, or set_all_reduce_hook",
    "check_is_root": "the root is what is sharded last",
}


def find(context: Context) -> Iterator[Draft]:
    """FSDP1's members, by the class or on the module, and questions of its class."""
    assert context.sharded is not None
    for call in context.module.calls:
        if isinstance(call.func, ast.Name) and call.func.id == "isinstance":
            if len(call.args) == 2 and context.fsdp1(call.args[1]) == "FullyShardedDataParallel":
                if holds(context, call.args[0]):
                    message = "is False for a module that fully_shard has sharded: FSDPModule"
                    yield breach(RULE, context, call, message)
        elif isinstance(call.func, ast.Attribute):
            yield from _called(context, call, call.func)
    for attribute in context.module.attributes:
        if attribute.attr == "module" and isinstance(attribute.ctx, ast.Load):
            if (
                holds(context, attribute.value)
                and context.sharded.has_known_class(attribute.value)
                and _is_certain(context, attribute)
            ):
                message = "is an AttributeError: fully_shard wraps nothing, the model is the module"
                yield breach(RULE, context, attribute, message)


def _called(context: Context, call: ast.Call, function: ast.Attribute) -> Iterator[Draft]:
    if function.attr in _STATIC:
        members = [fsdp1_member(p) for p in context.project.dotted(function, context.module)]
        if any(member and member[0] == "FullyShardedDataParallel" for member in members):
            if any(holds(context, value) for value in values_given(call)):
                message = f"on an FSDP2 model {function.attr} {_STATIC[function.attr]}"
                yield breach(RULE, context, call, message, context.source(function))
            return
    if function.attr in _METHODS and holds(context, function.value):
        if _is_certain(context, function):
            message = f"is an AttributeError on an FSDP2 model: {_METHODS[function.attr]}"
            yield breach(RULE, context, function, message)


def _is_certain(context: Context, attribute: ast.Attribute) -> bool:
    """Whether no class around has such a member itself, no other wrapper has it here, and nothing catches the error."""
    if _is_caught(context, attribute):
        return False
    name = re.escape(attribute.attr)
    own = rf"self\.{name}\s*[:=]|def {name}\(|module\(\s*[\"']{name}[\"']"
    words = words_around(context)
    return "DistributedDataParallel" not in words and re.search(own, words) is None


def _is_caught(context: Context, attribute: ast.Attribute) -> bool:
    """Whether a `try` around catches the AttributeError."""
    node: ast.AST = attribute
    for parent in context.module.ancestors(attribute):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        if isinstance(parent, ast.Try) and node in parent.body:
            kinds = {ast.unparse(h.type) if h.type is not None else "" for h in parent.handlers}
            if any(re.search(r"AttributeError|^(Base)?Exception$|^$", kind) for kind in kinds):
                return True
        node = parent
    return False
