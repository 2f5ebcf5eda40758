"""A model on a device that nobody made current.

FSDP1 without `device_id` trained where the model was. `fully_shard` moves what it shards to the current device, which is
number 0 on every rank until the program sets it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.constructor_call import Constructor
from fsdp_migrate.codemods.expressions import enclosed
from fsdp_migrate.codemods.plan import Plain, Translation, is_pure
from fsdp_migrate.codemods.rule import Example, Rule
from fsdp_migrate.index.models import SELF_RETURNING
from fsdp_migrate.index.module import Module
from fsdp_migrate.index.order import after
from fsdp_migrate.index.values import origins

RULE = Rule(
    "FSDP513",
    "set-device",
    "a model that is moved to a device by number makes that device the current one",
    """FSDP1 without `device_id` took the device that the model was on (`_init_utils.py`, `_get_compute_device`).
`fully_shard` moves parameters and buffers to the current device of its mesh (`_fsdp_init.py`, `_get_device_from_mesh` and
`_move_states_to_device`). `model.to(rank)` does not set the current device, and it starts CUDA, after which the mesh does not
set it either: every rank would train on device 0.

Where the program, or a file that hangs together with it, sets the current device, nothing is to do. Where it does not and the
model goes to a device with a number, `torch.cuda.set_device` is put in front, if the device is certainly one of CUDA; otherwise
`shard_model` makes the model's device the current one.""",
    (
        Example(
            "a CUDA device by number",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = Net().to(f"cuda:{rank}")
model = FSDP(model)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

model = Net().to(f"cuda:{rank}")
torch.cuda.set_device(f"cuda:{rank}")
fully_shard(model)
""",
            message="torch.cuda.set_device",
        ),
        Example(
            "a device that may be any",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap(model, rank):
    model = model.to(rank)
    return FSDP(model)
""",
            """\
from fsdp_migrate.runtime import shard_model


def wrap(model, rank):
    model = model.to(rank)
    return shard_model(model)
""",
            message="shard_model makes the model's device the current one",
        ),
        Example(
            "the program sets the device",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

torch.cuda.set_device(rank)
model = Net().to(rank)
model = FSDP(model)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

torch.cuda.set_device(rank)
model = Net().to(rank)
fully_shard(model)
""",
            quiet=True,
        ),
        Example(
            "the current device, or none",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(Net().cuda())
critic = FSDP(Critic())
""",
            """\
from torch.distributed.fsdp import fully_shard

model = fully_shard(Net().cuda())
critic = fully_shard(Critic())
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_SETTERS = frozenset(
    {
        "torch.cuda.set_device",
        "torch.xpu.set_device",
        "torch.npu.set_device",
        "torch.accelerator.set_device_index",
        "torch.accelerator.set_device_idx",
        "torch.cuda.device",
    }
)
_RUNTIME = (
    "shard_model makes the model's device the current one: fully_shard would move it to number 0"
)


def translate(constructor: Constructor) -> Translation | None:
    """What a model needs that is moved to a device by number before it is wrapped."""
    if constructor.model is None or not constructor.is_none("device_id"):
        return None
    devices = list(_devices(constructor))
    if not devices or _sets_device(constructor):
        return None
    context = constructor.context
    device = devices[-1]
    here = context.module.scope_of(device) is context.module.scope_of(constructor.call)
    spelled = context.spelled("torch.cuda.set_device", constructor.call)
    if len(devices) == 1 and here and spelled and _is_cuda(device) and is_pure(context, device):
        setup = f"{spelled}({enclosed(context.source(device))})"
        return Translation(
            RULE,
            f"{setup}: fully_shard moves to the current device",
            Plain(setup=(setup,)),
            note=True,
        )
    return Translation(RULE, _RUNTIME)


def _devices(constructor: Constructor) -> Iterator[ast.expr]:
    """The devices with a number, or unknown ones, that the model is moved to above the constructor."""
    context, model = constructor.context, constructor.model
    assert model is not None
    module = context.module
    chain: list[ast.expr] = [model]
    seen: set[ast.AST] = set()
    while chain:
        for made in origins(context.project, chain.pop(), module):
            call = made.node
            if call in seen or made.module is not module or not isinstance(call, ast.Call):
                continue
            seen.add(call)
            if isinstance(call.func, ast.Attribute) and call.func.attr in SELF_RETURNING:
                yield from _numbered(call)
                chain.append(call.func.value)
    text = ast.dump(model)
    scope = module.scope_of(constructor.call)
    for call in module.calls:
        if (
            call not in seen
            and isinstance(call.func, ast.Attribute)
            and ast.dump(call.func.value) == text
            and module.scope_of(call) is scope
            and after(constructor.call, call)
        ):
            yield from _numbered(call)


def _numbered(call: ast.Call) -> Iterator[ast.expr]:
    """The device that `.to(...)` or `.cuda(...)` names, unless it is the current one of its kind, or no device."""
    assert isinstance(call.func, ast.Attribute)
    given = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "device")]
    if call.func.attr not in {"to", "cuda"} or not given:
        return
    device = given[-1]
    if isinstance(device, ast.Constant) and isinstance(device.value, str):
        if ":" not in device.value:
            return
    elif isinstance(device, ast.Attribute) and device.attr.startswith(("float", "bfloat", "half")):
        return  # a dtype
    elif isinstance(device, ast.Call) and ast.unparse(device.func).endswith("current_device"):
        return
    yield device


def _is_cuda(device: ast.expr) -> bool:
    """Whether a device is one of CUDA, with its number."""
    text = device
    if isinstance(device, ast.Call) and ast.unparse(device.func) == "torch.device" and device.args:
        text = device.args[0]
        if len(device.args) == 2:
            return isinstance(text, ast.Constant) and text.value == "cuda"
    if isinstance(text, ast.JoinedStr) and text.values:
        text = text.values[0]
    return (
        isinstance(text, ast.Constant)
        and isinstance(text.value, str)
        and text.value.startswith("cuda:")
    )


def _sets_device(constructor: Constructor) -> bool:
    """Whether a file that hangs together with the constructor's sets the current device."""
    project = constructor.context.project
    return any(
        _sets(constructor, module) for module in project.connected(constructor.context.module)
    )


def _sets(constructor: Constructor, module: Module) -> bool:
    return any(
        constructor.context.project.dotted(call.func, module) & _SETTERS for call in module.calls
    )
