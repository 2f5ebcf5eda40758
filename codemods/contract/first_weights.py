"""The first weights of a sharded model: the same on every rank, and there at all."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.contract.facts import (
    breach,
    shardings,
    words_around,
)
from fsdp_migrate.codemods.expressions import values_given
from fsdp_migrate.codemods.optimizers.kept_parameters import names_of
from fsdp_migrate.codemods.rank_guards import is_first
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.index.module import Assigned
from fsdp_migrate.index.order import after
from fsdp_migrate.index.sharded import Place

DIVERGENT = Rule(
    "FSDP711",
    "weights-differ-by-rank",
    "weights that rank 0 alone loads before fully_shard reach one shard only",
    """`fully_shard` cuts each rank's shard out of that rank's own values; nothing is broadcast. Where rank 0 alone has
loaded a checkpoint, its shards hold it, and the others hold what they were initialised with: on two ranks the first half of
each parameter came from rank 0 and the second from rank 1. No error says so. FSDP1's `sync_module_states=True` broadcast
from rank 0. Load on every rank, or broadcast parameters and buffers before `fully_shard`, or load after it with
`set_model_state_dict` and `StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)`. Nothing is said where the
files around speak of a broadcast.""",
    (
        Example(
            "a checkpoint of one rank",
            """\
import torch
from torch.distributed.fsdp import fully_shard

if rank == 0:
    model.load_state_dict(torch.load("model.pt"))
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
""",
            message="set_model_state_dict",
        ),
        Example(
            "of every rank",
            """\
import torch
from torch.distributed.fsdp import fully_shard

if rank == 0:
    print("loading")
model.load_state_dict(torch.load("model.pt"))
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
""",
            quiet=True,
        ),
        Example(
            "broadcast",
            """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

if rank == 0:
    model.load_state_dict(torch.load("model.pt"))
for tensor in [*model.parameters(), *model.buffers()]:
    dist.broadcast(tensor.detach(), src=0)
fully_shard(model)
""",
            quiet=True,
        ),
    ),
)
META = Rule(
    "FSDP718",
    "meta-not-materialised",
    "a model built on the meta device needs to_empty and weights after fully_shard",
    """Parameters that were made on the meta device have no values; `fully_shard` shards them as they are. The first
forward says so: `RuntimeError: FSDP parameters should be materialized from meta device before training`. After
`fully_shard`, `model.to_empty(device=device)` allocates the shards, and an initialisation or a checkpoint fills them
(`set_model_state_dict`, `torch.distributed.checkpoint.load`). Buffers that are not in a checkpoint have to be computed
again. Nothing is said where the files around speak of one of these.""",
    (
        Example(
            "trained as it is",
            """\
import torch
from torch.distributed.fsdp import fully_shard

with torch.device("meta"):
    model = Transformer(config)
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
loss = model(batch)
""",
            message="to_empty",
        ),
        Example(
            "allocated and initialised",
            """\
import torch
from torch.distributed.fsdp import fully_shard

with torch.device("meta"):
    model = Transformer(config)
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
model.to_empty(device="cuda")
model.reset_parameters()
loss = model(batch)
""",
            quiet=True,
        ),
    ),
)
RULES = (DIVERGENT, META)

_SHARING = ("broadcast", "sync_module_states", "set_model_state_dict", "set_state_dict", "scatter")
_FILLING = (
    "to_empty",
    "load_state_dict",
    "set_model_state_dict",
    "set_state_dict",
    "distribute_tensor",
    "checkpoint",
    "dcp.",
    "init_weights",
    "materialize",
    "assign",
)


def find(context: Context) -> Iterator[Draft]:
    """Weights of one rank, and weights that nobody makes."""
    assert context.sharded is not None
    seen: set[ast.AST] = set()
    words: str | None = None
    for place in context.sharded.places:
        if place.module is not context.module:
            continue
        words = words_around(context) if words is None else words
        names = names_of(place.model, context.module, context.module.scope_of(place.call))
        if not any(word in words for word in _SHARING):
            for load in _loads_of_one_rank(context, place, names):
                if load not in seen:
                    seen.add(load)
                    message = (
                        "the other ranks keep their own values, and shards of both make one model: load on every rank,"
                        " or set_model_state_dict with broadcast_from_rank0=True after sharding"
                    )
                    yield breach(DIVERGENT, context, load, message)
    for place in shardings(context):
        statement = _on_meta(context, place)
        if statement is not None and statement not in seen:
            if not any(word in words_around(context) for word in _FILLING):
                seen.add(statement)
                message = "its parameters have no values yet: model.to_empty(device=...) after fully_shard, then weights"
                yield breach(META, context, statement, message)


def _loads_of_one_rank(context: Context, place: Place, names: list[str]) -> Iterator[ast.Call]:
    """`if rank == 0: model.load_state_dict(...)` above a call that shards the model, in the same function."""
    module = context.module
    for call in module.calls:
        function = call.func
        if not (
            isinstance(function, ast.Attribute)
            and function.attr == "load_state_dict"
            and ast.dump(function.value) in names
            and module.scope_of(call) is module.scope_of(place.call)
            and after(place.call, call)
        ):
            continue
        for parent in module.ancestors(call):
            if isinstance(parent, ast.If) and is_first(context, parent.test):
                inside = {id(node) for statement in parent.body for node in ast.walk(statement)}
                loads_otherwise = any(parent.orelse)
                if id(call) in inside and id(place.call) not in inside and not loads_otherwise:
                    if not _is_handed_on(context, call, place, names):
                        yield call
                break


def _is_handed_on(context: Context, load: ast.Call, place: Place, names: list[str]) -> bool:
    """Whether a function that is not in sight gets the model in between: it may make the ranks agree."""
    module = context.module
    return any(
        after(call, load)
        and after(place.call, call)
        and module.scope_of(call) is module.scope_of(load)
        and any(ast.dump(value) in names for value in values_given(call))
        and not context.project.dotted(call.func, module)
        for call in module.calls
    )


def _on_meta(context: Context, place: Place) -> ast.Call | None:
    """The call that builds the model inside `with torch.device("meta"):`, where a forward of it follows."""
    module = context.module
    if not isinstance(place.model, ast.Name):
        return None
    bindings = module.scope_of(place.model).bindings.get(place.model.id, [])
    if len(bindings) != 1 or not isinstance(bindings[0], Assigned):
        return None
    made = bindings[0].value
    if not isinstance(made, ast.Call) or not any(
        isinstance(parent, ast.With) and any(_is_meta(context, i) for i in parent.items)
        for parent in module.ancestors(made)
    ):
        return None
    name = place.model.id
    called = any(
        isinstance(call.func, ast.Name)
        and call.func.id == name
        and module.scope_of(call) is module.scope_of(place.call)
        and after(call, place.call)
        for call in module.calls
    )
    return made if called else None


def _is_meta(context: Context, item: ast.withitem) -> bool:
    manager = item.context_expr
    return (
        isinstance(manager, ast.Call)
        and "torch.device" in context.project.dotted(manager.func, context.module)
        and bool(manager.args)
        and isinstance(manager.args[0], ast.Constant)
        and manager.args[0].value == "meta"
    )
