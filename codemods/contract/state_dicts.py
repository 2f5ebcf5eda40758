"""State dicts of sharded modules: they hold DTensors, in both directions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.contract.facts import breach, holds
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.index.module import Assigned, Module
from fsdp_migrate.index.values import origin

_HEADER = """\
import torch
from torch.distributed.fsdp import fully_shard

for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
"""
SAVED = Rule(
    "FSDP705",
    "shards-saved",
    "torch.save of a sharded model's state_dict() writes the shards of one rank",
    """`state_dict()` of a sharded module holds DTensors, and `torch.save` writes of each what this rank has. No error says
so. The file cannot be loaded into a plain model: the shapes are right, the values are DTensors, and what the other ranks
had is gone. `get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))` gathers, on
every rank, and gives rank 0 the whole; `torch.distributed.checkpoint` saves shards so that they can be put together again.
Files that are named after the rank are left alone: there every rank writes its own.""",
    (
        Example(
            "directly",
            _HEADER + 'if rank == 0:\n    torch.save(model.state_dict(), "model.pt")\n',
            message="get_model_state_dict",
        ),
        Example(
            "through names",
            _HEADER + "state = model.state_dict()\n"
            'checkpoint = {"model": state, "step": step}\n'
            'torch.save(checkpoint, "last.pt")\n',
            message="this rank",
        ),
        Example(
            "gathered, and a file for each rank",
            """\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

fully_shard(model)
options = StateDictOptions(full_state_dict=True, cpu_offload=True)
torch.save(get_model_state_dict(model, options=options), "model.pt")
torch.save(model.state_dict(), f"model-{rank}.pt")
""",
            quiet=True,
        ),
        Example(
            "gathered by hand",
            _HEADER + "full = {}\n"
            "for name, shard in model.state_dict().items():\n"
            "    full[name] = shard.full_tensor()\n"
            'torch.save(full, "model.pt")\n',
            quiet=True,
        ),
    ),
)
LOADED = Rule(
    "FSDP715",
    "full-state-loaded",
    "load_state_dict of a sharded module takes shards: set_model_state_dict takes a full state dict",
    """A full tensor does not fit a sharded parameter. `model.load_state_dict(torch.load(path))` fails with `While copying
the parameter named ...` (mixed torch.Tensor and DTensor), with `assign=True` with `AttributeError: 'Parameter' object has
no attribute '_local_tensor'`. `set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))` shards
each value; with `broadcast_from_rank0=True` rank 0 alone needs it. Or load before `fully_shard`, on every rank.""",
    (
        Example(
            "a file of full tensors",
            _HEADER + 'model.load_state_dict(torch.load("model.pt"))\n',
            message="set_model_state_dict",
        ),
        Example(
            "before sharding, and shards of this rank",
            'import torch\n\nmodel.load_state_dict(torch.load("model.pt"))\n'
            + _HEADER.partition("\n")[2]
            + 'model.load_state_dict(torch.load(f"model-{rank}.pt"))\n',
            quiet=True,
        ),
    ),
)
RULES = (SAVED, LOADED)

_READERS = frozenset({"torch.load", "safetensors.torch.load_file"})
_BY_RANK = re.compile(r"rank|shard", re.IGNORECASE)


def find(context: Context) -> Iterator[Draft]:
    """What is saved of sharded modules, and loaded into them, as if they were plain."""
    for call in context.module.calls:
        paths = context.project.dotted(call.func, context.module)
        if "torch.save" in paths and call.args and not _is_by_rank(context, call.args[1:]):
            for state in _states(context, call.args[0], 0):
                message = (
                    "holds DTensors, and the file the shards of this rank alone:"
                    " get_model_state_dict with full_state_dict=True, or torch.distributed.checkpoint"
                )
                yield breach(SAVED, context, call, message, context.source(state))
        function = call.func
        if (
            isinstance(function, ast.Attribute)
            and function.attr == "load_state_dict"
            and len(call.args) == 1
            and holds(context, function.value)
            and _is_full(context, call.args[0])
        ):
            message = (
                "full tensors do not fit shards: set_model_state_dict with full_state_dict=True"
            )
            yield breach(LOADED, context, call, message, context.source(function))


def _is_by_rank(context: Context, targets: list[ast.expr]) -> bool:
    """Whether a path speaks of a rank, itself or where its name was made."""
    texts = []
    for target in targets:
        made = origin(context.project, target, context.module)
        texts += [ast.unparse(target), ast.unparse(made.node) if made and made.node else ""]
    return any(_BY_RANK.search(text) for text in texts)


def _states(context: Context, value: ast.expr, depth: int) -> Iterator[ast.Call]:
    """The calls of `state_dict()` of sharded modules whose result an expression holds as it is."""
    if depth > 3:
        return
    if isinstance(value, ast.Dict):
        for part in value.values:
            yield from _states(context, part, depth + 1)
    elif isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute) and value.func.attr == "state_dict":
            if holds(context, value.func.value):
                yield value
        elif isinstance(value.func, ast.Name) and value.func.id == "dict":
            for keyword in value.keywords:
                yield from _states(context, keyword.value, depth + 1)
    elif isinstance(value, ast.Name) and not _is_changed(context.module, value):
        bindings = context.module.scope_of(value).bindings.get(value.id, [])
        if len(bindings) == 1 and isinstance(bindings[0], Assigned) and not bindings[0].path:
            yield from _states(context, bindings[0].value, depth + 1)


def _is_changed(module: Module, name: ast.Name) -> bool:
    """Whether the entries of a state dict may become others: `state[key] = ...`, or a loop that gathers them."""
    for load in module.loads.get(name.id, ()):
        parent = module.parents[load]
        if isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load):
            if not isinstance(parent.slice, ast.Constant):
                return True
        if isinstance(parent, ast.Attribute) and parent.attr in {"update", "pop", "clear"}:
            return True
        if isinstance(parent, ast.Call) and load in parent.args:
            if ast.unparse(parent.func) not in {"torch.save", "len", "print"}:
                return True
    return False


def _is_full(context: Context, state: ast.expr) -> bool:
    """Whether a state dict comes from a file that is not one rank's."""
    while True:
        made = origin(context.project, state, context.module)
        if made is None or made.node is None or made.module is not context.module:
            return False
        if isinstance(made.node, ast.Subscript):
            state = made.node.value
            continue
        node = made.node
        break
    return (
        isinstance(node, ast.Call)
        and bool(context.project.dotted(node.func, context.module) & _READERS)
        and not _is_by_rank(context, node.args[:1])
    )
