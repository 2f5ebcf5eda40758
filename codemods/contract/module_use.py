"""What is done with a sharded module: called past its hooks, copied, or gathered by hand for what needs more than that."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.contract.facts import breach, holds, words_around
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.index.order import block_of

_HEADER = """\
from torch.distributed.fsdp import fully_shard

for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
"""

FORWARD = Rule(
    "FSDP704",
    "forward-past-the-hooks",
    "model(x), not model.forward(x): forward alone does not gather",
    """The parameters are gathered by hooks that run when the module is called. `model.forward(x)` goes past them: a
parameter of the module itself is still a shard, and the first operation on it fails with `RuntimeError: ... got mixed
torch.Tensor and DTensor`. A module that has no parameters of its own runs, because its units gather their own.
`register_fsdp_forward_method(model, "forward")`, or `model.unshard()` in front, gathers there too; where a file says one of
these, nothing is said.""",
    (
        Example(
            "the forward itself",
            _HEADER + "loss = model.forward(batch)\n",
            message="call the model",
        ),
        Example(
            "the model, another method, and a forward before sharding",
            "shape = model.forward(sample).shape\n" + _HEADER + "loss = model(batch)\n",
            quiet=True,
        ),
        Example(
            "a registered method",
            _HEADER.replace(
                "import fully_shard", "import fully_shard, register_fsdp_forward_method"
            )
            + 'register_fsdp_forward_method(model, "forward")\nloss = model.forward(batch)\n',
            quiet=True,
        ),
    ),
)
UNSHARD = Rule(
    "FSDP714",
    "unshard-is-no-summon",
    "unshard() gathers one unit to compute with, not to read or write the model",
    """`unshard()` gathers the parameters of the module's own unit, not those of the units below it, in the dtype that they
are computed in, and `reshard()` throws them away: what was written to them is lost. A state dict holds the shards all the
same, because its hook reshards first. All of this was seen on two ranks. To read or write full parameters, use
`get_model_state_dict` and `set_model_state_dict`, or `summon_full_params` of `fsdp_migrate.runtime`. As a prefetch in front
of forward `unshard()` is what it is meant for (pytorch#129229, pytorch#137129).""",
    (
        Example(
            "to save",
            _HEADER + "model.unshard()\nstate = model.state_dict()\nmodel.reshard()\n",
            message="the state dict holds shards all the same",
        ),
        Example(
            "to write",
            _HEADER + "model.unshard()\nmodel.head.weight.data.zero_()\nmodel.reshard()\n",
            message="is lost",
        ),
        Example(
            "to prefetch, and to look at dtypes",
            _HEADER + "model.unshard()\n"
            "print({p.dtype for p in model.parameters(recurse=False)})\n"
            "loss = model(batch)\n",
            quiet=True,
        ),
    ),
)
COPY = Rule(
    "FSDP716",
    "sharded-module-copied",
    "a sharded module cannot be copied, nor wrapped by DistributedDataParallel",
    """`copy.deepcopy` of a sharded module fails: `AssertionError: FSDP does not support deepcopy. Please use state dict
for serialization.` `AveragedModel` begins with such a copy. `DistributedDataParallel` fails on DTensors, and gradients are
reduced already. For a moving average build and shard a second model, and update its parameters from the first's; `DTensor`s
of the same placements add like tensors (pytorch#82070, pytorch#149138).""",
    (
        Example(
            "an average of a sharded model",
            f"import copy\n\n{_HEADER}ema = copy.deepcopy(model)\n",
            message="before fully_shard",
        ),
        Example(
            "a copy taken before",
            f"import copy\n\nema = copy.deepcopy(model)\n{_HEADER}",
            quiet=True,
        ),
    ),
)
RULES = (FORWARD, UNSHARD, COPY)

_COPIES = {
    "copy.deepcopy": "fails on a sharded module: copy it before fully_shard, and shard both",
    "torch.optim.swa_utils.AveragedModel": "begins with a deepcopy, which fails on a sharded module: shard a second model",
    "torch.nn.parallel.DistributedDataParallel": "fails on a sharded module, which reduces its gradients already",
}


def find(context: Context) -> Iterator[Draft]:
    """Uses of sharded modules that do not go through their hooks."""
    for attribute in context.module.attributes:
        call = context.module.parents[attribute]
        if not (isinstance(call, ast.Call) and call.func is attribute):
            continue
        if attribute.attr == "forward" and holds(context, attribute.value):
            if not _gathers(context, call, attribute.value):
                message = "call the model itself: forward alone does not gather its parameters"
                yield breach(FORWARD, context, attribute, message)
        elif attribute.attr == "unshard" and holds(context, attribute.value):
            yield from _summoned(context, call, attribute.value)
    for call in context.module.calls:
        if len(call.args) < 1 or not holds(context, call.args[0]):
            continue
        for path in context.project.dotted(call.func, context.module) & _COPIES.keys():
            yield breach(COPY, context, call, _COPIES[path])


def _gathers(context: Context, call: ast.Call, model: ast.expr) -> bool:
    """Whether the program sees to it that forward gathers."""
    if "register_fsdp_forward_method" in words_around(context):
        return True
    around = context.module.enclosing_function(call) or context.module.tree
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "unshard"
        and ast.dump(node.value) == ast.dump(model)
        for node in ast.walk(around)
    )


def _summoned(context: Context, call: ast.Call, model: ast.expr) -> Iterator[Draft]:
    """What stands between `model.unshard()` and the next call of the model, or `model.reshard()`."""
    statement = context.module.statement(call)
    block = block_of(context.module.parents[statement], statement)
    text = ast.dump(model)
    for later in block[block.index(statement) + 1 :] if block else ():
        for node in ast.walk(later):
            if isinstance(node, ast.Call) and ast.dump(node.func) == text:
                return
            if not isinstance(node, ast.Attribute):
                continue
            if node.attr == "reshard" and ast.dump(node.value) == text:
                return
            if node.attr == "state_dict" and ast.dump(node.value) == text:
                message = "unshard() is no summon: the state dict holds shards all the same; use get_model_state_dict"
                yield breach(UNSHARD, context, node, message)
            if _writes(context, node) and _is_below(node, text):
                message = "what is written between unshard() and reshard() is lost: use summon_full_params of the runtime"
                yield breach(UNSHARD, context, node, message)


def _writes(context: Context, node: ast.Attribute) -> bool:
    """`….data.zero_()`, `….weight.copy_(...)`."""
    call = context.module.parents[node]
    name = node.attr
    in_place = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
    return in_place and isinstance(call, ast.Call) and call.func is node


def _is_below(node: ast.expr, text: str) -> bool:
    """Whether a dotted name begins with a model and names something of it."""
    while isinstance(node, ast.Attribute):
        node = node.value
        if ast.dump(node) == text:
            return True
    return False
