"""Parameters of no dimension, which FSDP1 flattened with the others and `fully_shard` refuses."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.plan import Plan
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.module import Module

RULE = Rule(
    "FSDP218",
    "scalar-parameter",
    "fully_shard takes no parameter of zero dimensions",
    """FSDP1 flattened all parameters of a unit into one, scalars such as CLIP's `logit_scale` among them. FSDP2 shards
each parameter by its first dimension, and `fully_shard` raises ValueError for one that has none (`_fsdp_init.py`,
`_get_managed_states`); `shard_model` raises it before anything is sharded. Give the parameter one dimension:
`torch.ones(1)` for `torch.ones([])`, and `load_state_dict` of older checkpoints a `reshape(1)`.

Two other relaxations of FSDP1: parameters that are not contiguous, which `fully_shard` refuses by name and `shard_model` makes
contiguous, and parameters of zero elements, which both versions take.""",
    (
        Example(
            "a temperature",
            """\
import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.ones([]) * 2.6593)


model = FSDP(Clip())
""",
            """\
import torch
import torch.nn as nn
from torch.distributed.fsdp import fully_shard


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.ones([]) * 2.6593)


# fsdp-migrate: FSDP218 by hand: fully_shard refuses parameters of no dimension, give them the shape (1,): logit_scale
model = fully_shard(Clip())
""",
            message="logit_scale",
        ),
        Example(
            "one element, one dimension",
            """\
import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Scaled(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.shift = nn.Parameter(torch.zeros(sizes))


model = FSDP(Scaled([]))
""",
            """\
import torch
import torch.nn as nn
from torch.distributed.fsdp import fully_shard


class Scaled(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.shift = nn.Parameter(torch.zeros(sizes))


model = fully_shard(Scaled([]))
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_PARAMETER = {"torch.nn.Parameter", "torch.nn.parameter.Parameter"}
_OF_SHAPE = frozenset({"torch.ones", "torch.zeros", "torch.empty", "torch.rand", "torch.randn"})


def find(context: Context) -> Iterator[Draft]:
    """Constructors in whose files a scalar parameter is made."""
    plans = [plan for plan in context.plans.values() if _is_here(context, plan)]
    if not plans:
        return
    around = sorted(context.project.connected(context.module), key=lambda module: module.shown)
    found = [target for where in around for target in _scalars(context, where)]
    if not found:
        return
    names = ", ".join(dict.fromkeys(found))
    message = f"fully_shard refuses parameters of no dimension, give them the shape (1,): {names}"
    for plan in plans:
        yield Draft(
            RULE,
            plan.constructor.call,
            Action.MANUAL,
            message,
            "FSDP(...)",
            frozenset({plan.site}),
            mark=True,
        )


def _is_here(context: Context, plan: Plan) -> bool:
    """Whether a constructor is in this file, and may shard all that its model has."""
    constructor = plan.constructor
    return constructor.context.module is context.module and all(
        constructor.is_none(name) for name in ("ignored_modules", "ignored_states")
    )


def _scalars(context: Context, module: Module) -> Iterator[str]:
    """What a file assigns scalar parameters to."""
    for call in module.calls:
        statement = module.parents[call]
        if not isinstance(statement, ast.Assign) or not call.args:
            continue
        function = context.project.dotted(call.func, module)
        if function and function <= _PARAMETER and _is_scalar(context, module, call.args[0]):
            yield ast.unparse(statement.targets[0]).removeprefix("self.")


def _is_scalar(context: Context, module: Module, value: ast.expr) -> bool:
    """Whether an expression is a tensor that is seen to have no dimension."""
    if isinstance(value, ast.BinOp):
        sides = (value.left, value.right)
        return any(_is_scalar(context, module, side) for side in sides) and all(
            _is_scalar(context, module, side) or _is_number(side) for side in sides
        )
    if not isinstance(value, ast.Call):
        return False
    function = context.project.dotted(value.func, module)
    first = value.args[0] if value.args else None
    if function and function <= _OF_SHAPE | {"torch.full"}:
        return isinstance(first, ast.List | ast.Tuple) and not first.elts
    if function == {"torch.tensor"}:
        return first is not None and _is_number(first)
    return (
        isinstance(value.func, ast.Attribute)
        and value.func.attr in {"log", "exp", "float", "to", "clone"}
        and _is_scalar(context, module, value.func.value)
    )


def _is_number(value: ast.expr) -> bool:
    """Whether an expression can only be a number: numbers, their sums and products, and functions of math and numpy."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int | float)
    if isinstance(value, ast.UnaryOp):
        return _is_number(value.operand)
    if isinstance(value, ast.BinOp):
        return _is_number(value.left) and _is_number(value.right)
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and isinstance(value.func.value, ast.Name)
        and value.func.value.id in {"math", "np", "numpy"}
        and value.func.attr in {"log", "sqrt", "exp"}
        and all(_is_number(argument) for argument in value.args)
    )


Command = command(find, __doc__ or "")
