"""Arguments that mean nothing under FSDP2: `limit_all_gathers`, `use_orig_params`, `backward_prefetch`, `device_id`.

They go away, and a finding on each says why. An argument whose expression could do something when it is evaluated stays,
and the call goes to the runtime.
"""

from __future__ import annotations

import ast

from fsdp_migrate.codemods.plan import Constructor, Plain, Translation
from fsdp_migrate.codemods.rule import Example, Rule
from fsdp_migrate.index.values import origins

BACKWARD_PREFETCH = Rule(
    "FSDP203",
    "backward-prefetch",
    "FSDP2 prefetches in backward as BACKWARD_PRE does",
    """FSDP2 gathers the next unit before the gradients of the current one are computed, which is BACKWARD_PRE. BACKWARD_POST
and None give the same numbers with one unit less in memory; FSDP2 has no BACKWARD_POST, and None is
`set_modules_to_backward_prefetch` of a unit to itself, which the runtime does.""",
    (
        Example(
            "the default",
            """\
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP

model = FSDP(model, backward_prefetch=BackwardPrefetch.BACKWARD_PRE)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
        Example(
            "no prefetch",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, backward_prefetch=None)
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, backward_prefetch=None)
""",
        ),
    ),
)
LIMIT_ALL_GATHERS = Rule(
    "FSDP205",
    "limit-all-gathers",
    "FSDP2 bounds the memory of all-gathers by itself",
    """FSDP1's rate limiter blocked the CPU so that not too many all-gathers were in flight. FSDP2 frees memory in stream
order and needs no limiter: the argument goes away whatever its value.""",
    (
        Example(
            "any value",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, limit_all_gathers=config.limit_all_gathers)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
    ),
)
USE_ORIG_PARAMS = Rule(
    "FSDP206",
    "use-orig-params",
    "FSDP2 always keeps the original parameters",
    """There is no flat parameter any more: every parameter keeps its name and shape. Programs that used FSDP1's default,
False, had one flat tensor a unit in the optimizer; elementwise optimizers (SGD, Adam, AdamW) give the same numbers.""",
    (
        Example(
            "any value",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, use_orig_params=True)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
    ),
)
DEVICE_ID = Rule(
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
    ),
)
RULES = (BACKWARD_PREFETCH, LIMIT_ALL_GATHERS, USE_ORIG_PARAMS, DEVICE_ID)


def translate_backward_prefetch(constructor: Constructor) -> Translation | None:
    """What becomes of `backward_prefetch`."""
    value = constructor.value("backward_prefetch")
    if value is None:
        return None
    member = constructor.member(value, "BackwardPrefetch")
    gone = (value,)
    if member == "BACKWARD_PRE":
        message = "BACKWARD_PRE is what FSDP2 always does"
        return Translation(BACKWARD_PREFETCH, message, Plain(gone=gone), in_runtime=False)
    if member == "BACKWARD_POST":
        message = "BACKWARD_POST has no counterpart: FSDP2 prefetches one unit earlier, with the same numbers"
        return Translation(BACKWARD_PREFETCH, message, Plain(gone=gone), in_runtime=False)
    return Translation(BACKWARD_PREFETCH, "shard_model prefetches as this argument says")


def translate_limit_all_gathers(constructor: Constructor) -> Translation | None:
    """What becomes of `limit_all_gathers`."""
    return _dropped(
        constructor,
        "limit_all_gathers",
        LIMIT_ALL_GATHERS,
        "FSDP2 needs no limit: the argument goes away",
    )


def translate_use_orig_params(constructor: Constructor) -> Translation | None:
    """What becomes of `use_orig_params`."""
    return _dropped(
        constructor,
        "use_orig_params",
        USE_ORIG_PARAMS,
        "FSDP2 always keeps the original parameters",
    )


def translate_device_id(constructor: Constructor) -> Translation | None:
    """What becomes of `device_id`."""
    value = constructor.value("device_id")
    if value is None:
        return None
    if constructor.is_none("device_id"):
        return Translation(DEVICE_ID, "None: the model is where it is", Plain(), in_runtime=False)
    context = constructor.context
    if context.project.dotted(getattr(value, "func", value), context.module) == {
        "torch.cuda.current_device"
    }:
        return Translation(DEVICE_ID, "fully_shard moves the model to the current device", Plain())
    if sets_device(constructor) and is_pure(value) and not _certainly_cpu(constructor, value):
        return Translation(
            DEVICE_ID,
            "fully_shard moves the model to the current device, which the program sets",
            Plain(),
        )
    return Translation(DEVICE_ID, "shard_model makes this device the current one")


def _certainly_cpu(constructor: Constructor, value: ast.expr) -> bool:
    """Whether a device can only be the CPU, where a machine with a GPU would default to the GPU."""
    context = constructor.context
    return all(
        made.node is not None and any(_is_cpu(node) for node in ast.walk(made.node))
        for made in origins(context.project, value, context.module)
    )


def _is_cpu(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == "cpu"


def sets_device(constructor: Constructor) -> bool:
    """Whether the file of the constructor makes a device current."""
    return any(
        attribute.attr == "set_device"
        for attribute in constructor.context.module.attributes
        if isinstance(attribute.ctx, ast.Load)
    )


def _dropped(constructor: Constructor, name: str, rule: Rule, message: str) -> Translation | None:
    value = constructor.value(name)
    if value is None:
        return None
    if is_pure(value):
        return Translation(rule, message, Plain(gone=(value,)), in_runtime=False)
    return Translation(
        rule, f"{message}; its expression may do more than give a value, so it stays"
    )


def is_pure(value: ast.expr) -> bool:
    """Whether an expression only gives a value: no call but of `torch.device`, no await, no assignment."""
    for node in ast.walk(value):
        if isinstance(node, ast.Await | ast.NamedExpr | ast.Yield | ast.YieldFrom):
            return False
        if isinstance(node, ast.Call) and ast.unparse(node.func) != "torch.device":
            return False
    return True
