"""An optimizer that is built before the model is sharded.

FSDP1 with `use_orig_params=True` kept the parameter objects, so the order did not matter. `fully_shard` replaces them: the
optimizer then updates tensors that nobody reads any more, without an error, and the loss stays where it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP501",
    "optimizer-before-sharding",
    "an optimizer built before fully_shard trains nothing",
    """`fully_shard` replaces the parameters by DTensors. An optimizer made before holds the old ones: its steps change
nothing, and no error says so. Build the optimizer after the model is sharded; FSDP1 allows that order as well.""",
    (
        Example(
            "the optimizer first",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

optimizer = torch.optim.AdamW(model.parameters())
model = FSDP(model, use_orig_params=True)
""",
            message="after the model is sharded",
        ),
        Example(
            "the optimizer last",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, use_orig_params=True)
optimizer = torch.optim.AdamW(model.parameters())
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)


def find(context: Context) -> Iterator[Draft]:
    """Calls that take a model's parameters above the model's constructor, in the same function."""
    for plan in context.plans.values():
        constructor = plan.constructor
        if constructor.context.module is not context.module or constructor.model is None:
            continue
        text = ast.dump(constructor.model)
        scope = context.module.scope_of(constructor.call)
        for call in context.module.calls:
            if context.module.scope_of(call) is not scope or call.lineno >= constructor.call.lineno:
                continue
            if _builds_optimizer(context, call, text):
                yield Draft(
                    RULE,
                    call,
                    Action.MANUAL,
                    "build the optimizer after the model is sharded: fully_shard replaces the parameters",
                    context.source(call.func) + "(...)",
                    frozenset({plan.site}),
                    silent=True,
                )


def _builds_optimizer(context: Context, call: ast.Call, model: str) -> bool:
    """Whether a call takes `model.parameters()` and is an optimizer's, as far as its name tells."""
    dotted = context.project.dotted(call.func, context.module)
    name = ast.unparse(call.func).lower()
    if (
        not any(path.startswith("torch.optim.") for path in dotted)
        and "optim" not in name
        and "adam" not in name
    ):
        return False
    for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
        for node in ast.walk(argument):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in {"parameters", "named_parameters"}
                and ast.dump(node.value) == model
            ):
                return True
    return False


Command = command(find, __doc__ or "")
