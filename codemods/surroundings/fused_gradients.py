"""Gradients that a kernel writes elsewhere than to `grad`: `p.main_grad`, `fuse_wgrad_accumulation=True`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.codemods.surroundings.parameters import Parameters
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP516",
    "gradient-elsewhere",
    "gradients that a kernel accumulates into main_grad are never reduced",
    """Transformer Engine and Apex can accumulate weight gradients into `main_grad` of a parameter, in the kernel of the
backward. FSDP2 gathers and frees its own unsharded parameters, reduces their `grad`, and knows no `main_grad`
(TransformerEngine#2698). FSDP1 put views of its flat parameter in the parameters' places for a forward (`_flat_param.py`):
neither reduces such gradients. Switch the fusion off, and read `grad`.""",
    (
        Example(
            "gradients copied from main_grad",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, use_orig_params=True)
for p in model.parameters():
    p.grad = p.main_grad
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
for p in model.parameters():
    # fsdp-migrate: FSDP516 by hand: FSDP2 reduces grad alone: switch the fusion off, and read grad
    p.grad = p.main_grad
""",
            message="switch the fusion off",
        ),
        Example(
            "of another model",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, use_orig_params=True)
for p in teacher.parameters():
    p.grad = p.main_grad
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
for p in teacher.parameters():
    p.grad = p.main_grad
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_MESSAGE = "FSDP2 reduces grad alone: switch the fusion off, and read grad"


def find(context: Context, parameters: Parameters) -> Iterator[Draft]:
    """Uses of `main_grad` of an FSDP1 model's parameters."""
    for node, held in parameters.of(context):
        name = node.attr if isinstance(node, ast.Attribute) else ""
        if name == "main_grad":
            yield Draft(RULE, node, Action.MANUAL, _MESSAGE, f".{name}", held.sites, mark=True)
