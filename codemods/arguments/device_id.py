"""`device_id`: the device that the model is moved to. `fully_shard` moves it to the current device of its mesh."""

from __future__ import annotations

import ast

from fsdp_migrate.codemods.constructor_call import Constructor
from fsdp_migrate.codemods.plan import Plain, Translation, is_pure
from fsdp_migrate.codemods.rule import Example, Rule
from fsdp_migrate.index.order import after
from fsdp_migrate.index.values import origins

RULE = Rule(
    "FSDP207",
    "device-id",
    "the device is the current device of the mesh's type",
    """FSDP1 moved the model to `device_id`. `fully_shard` moves what it shards to the current device of the mesh, so the
argument goes away where the program sets the current device (`torch.cuda.set_device`) or passes the current one. Everything
else goes to the runtime, which makes the device current first.""",
    (
        Example(
            "the current device",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, device_id=torch.cuda.current_device())
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
        Example(
            "a device that nobody made current",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, device_id=rank)
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, device_id=rank)
""",
        ),
        Example(
            "a device that the program makes current",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

torch.cuda.set_device(local_rank)
model = FSDP(model, device_id=torch.device("cuda", local_rank))
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

torch.cuda.set_device(local_rank)
fully_shard(model)
""",
        ),
        Example(
            "None",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, device_id=None)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
        Example(
            "the CPU, where a machine may have a GPU",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, device_id=torch.device("cpu"))
""",
            """\
import torch
from fsdp_migrate.runtime import shard_model

model = shard_model(model, device_id=torch.device("cpu"))
""",
        ),
    ),
)
RULES = (RULE,)

_SETTERS = frozenset(
    {
        "torch.cuda.set_device",
        "torch.xpu.set_device",
        "torch.accelerator.set_device_index",
        "torch.accelerator.set_device_idx",
    }
)


def translate(constructor: Constructor) -> Translation | None:
    """What becomes of `device_id`."""
    value = constructor.value("device_id")
    if value is None:
        return None
    if constructor.is_none("device_id"):
        return Translation(RULE, "None: the model is where it is", Plain(), in_runtime=False)
    context = constructor.context
    if context.project.dotted(getattr(value, "func", value), context.module) == {
        "torch.cuda.current_device"
    }:
        return Translation(RULE, "fully_shard moves the model to the current device", Plain())
    if (
        _is_made_current(constructor, value)
        and is_pure(context, value)
        and not _certainly_cpu(constructor, value)
    ):
        return Translation(
            RULE,
            "fully_shard moves the model to the current device, which the program sets",
            Plain(),
        )
    return Translation(RULE, "shard_model makes this device the current one")


def _certainly_cpu(constructor: Constructor, value: ast.expr) -> bool:
    """Whether a device can only be the CPU, where a machine with a GPU would default to the GPU."""
    context = constructor.context
    return all(
        made.node is not None and any(_is_cpu(node) for node in ast.walk(made.node))
        for made in origins(context.project, value, context.module)
    )


def _is_cpu(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == "cpu"


def _is_made_current(constructor: Constructor, value: ast.expr) -> bool:
    """Whether the file makes a device current before the constructor can run, and perhaps this one."""
    module = constructor.context.module
    here = module.scope_of(constructor.call)
    setters = [
        call
        for call in module.calls
        if constructor.context.project.dotted(call.func, module) & _SETTERS
        and (module.scope_of(call) is not here or after(constructor.call, call))
    ]
    return bool(setters) and all(_may_set(constructor, call, value) for call in setters)


def _may_set(constructor: Constructor, setter: ast.Call, value: ast.expr) -> bool:
    """Whether a call can make this very device current: a number can only be the same number."""
    if len(setter.args) != 1:
        return False
    made = [constructor.origin(expression) for expression in (setter.args[0], value)]
    numbers = [m.node.value for m in made if m is not None and isinstance(m.node, ast.Constant)]
    return not numbers or (len(numbers) == 2 and numbers[0] == numbers[1])
