"""`FSDP_USE_FULL_PREC_IN_EVAL`: the environment variable by which FSDP1 evaluated in full precision."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.findings import Action

_VARIABLE = "FSDP_USE_FULL_PREC_IN_EVAL"

RULE = Rule(
    "FSDP217",
    "full-precision-eval",
    "FSDP2 evaluates in param_dtype as it trains",
    """With `FSDP_USE_FULL_PREC_IN_EVAL=1` in the environment FSDP1 left parameters and inputs in full precision while the
model is in `eval()` (`_flat_param.py`, `_use_full_prec_in_eval`). FSDP2 has no such mode and says nothing: losses and
metrics of an evaluation would change. Evaluate a copy without `mp_policy`, or accept the lower precision and remove the
variable. Where it is set outside of the program, `shard_model` warns.""",
    (
        Example(
            "set by the program",
            """\
import os

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

os.environ["FSDP_USE_FULL_PREC_IN_EVAL"] = "1"
model = FSDP(model, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
""",
            message="remove it",
        ),
        Example(
            "switched off",
            """\
import os

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

os.environ["FSDP_USE_FULL_PREC_IN_EVAL"] = "0"
model = FSDP(model, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
""",
            """\
import os

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

os.environ["FSDP_USE_FULL_PREC_IN_EVAL"] = "0"
fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
""",
            quiet=True,
        ),
        Example(
            "nothing is in lower precision",
            """\
import os

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

os.environ["FSDP_USE_FULL_PREC_IN_EVAL"] = "1"
model = FSDP(model)
""",
            """\
import os

from torch.distributed.fsdp import fully_shard

os.environ["FSDP_USE_FULL_PREC_IN_EVAL"] = "1"
fully_shard(model)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)


def find(context: Context) -> Iterator[Draft]:
    """Statements that set the variable, where a model around may be in mixed precision."""
    around = context.project.connected(context.module)
    sites = frozenset(
        plan.site
        for plan in context.plans.values()
        if plan.constructor.context.module in around
        and (plan.constructor.splat or not plan.constructor.is_none("mixed_precision"))
    )
    if not sites:
        return
    for node in ast.walk(context.module.tree):
        if isinstance(node, ast.Constant) and node.value == _VARIABLE and _is_set(context, node):
            message = "FSDP2 cannot evaluate in full precision: remove it, or evaluate a copy without mp_policy"
            yield Draft(RULE, node, Action.MANUAL, message, _VARIABLE, sites, silent=True)


def _is_set(context: Context, name: ast.Constant) -> bool:
    """Whether a statement gives the variable a value that is not seen to switch it off."""
    module = context.module
    around = module.parents[name]
    given: ast.expr | None = None
    if isinstance(around, ast.Subscript) and isinstance(around.ctx, ast.Store):
        statement = module.parents[around]
        given = statement.value if isinstance(statement, ast.Assign) else None
    elif isinstance(around, ast.Call) and isinstance(around.func, ast.Attribute):
        sets = around.func.attr in {"setdefault", "putenv"} and len(around.args) > 1
        given = around.args[1] if sets else None
    elif isinstance(around, ast.Dict) and name in around.keys:
        given = around.values[around.keys.index(name)]
    if given is None:
        return False
    return not isinstance(given, ast.Constant) or given.value == "1"


Command = command(find, __doc__ or "")
