"""`use_orig_params`: whether the optimizer sees the original parameters. Under FSDP2 it always does."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from fsdp_migrate.codemods.constructor_call import Constructor
from fsdp_migrate.codemods.plan import Plain, Translation, without_effect
from fsdp_migrate.codemods.rule import Example, Rule

RULE = Rule(
    "FSDP206",
    "use-orig-params",
    "FSDP2 always keeps the original parameters",
    """There is no flat parameter any more: every parameter keeps its name and shape. Programs that used FSDP1's default,
False, had one flat tensor a unit in the optimizer; elementwise optimizers (SGD, Adam, AdamW) give the same numbers.

Optimizers that look at a tensor as a whole do not: the norms of LAMB and LARS, the rows and columns of Adafactor, Shampoo and
Muon were those of flat shards under FSDP1, whatever this argument, and are those of the parameters under FSDP2. The steps
then are those of a model that is not sharded, and the finding says that they change.""",
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
        Example(
            "a value from a configuration",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, use_orig_params=config.use_peft)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
        Example(
            "an expression that does more than give a value",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, use_orig_params=options.pop("use_orig_params"))
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, use_orig_params=options.pop("use_orig_params"))
""",
            message="stays",
        ),
        Example(
            "an optimizer that looks at whole tensors",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.optim import Adafactor

model = FSDP(model)
optimizer = Adafactor(model.parameters())
""",
            """\
from torch.distributed.fsdp import fully_shard
from torch.optim import Adafactor

fully_shard(model)
# fsdp-migrate: FSDP517 by hand: fails on DTensors: Adam, AdamW, SGD and most others of torch.optim do not
optimizer = Adafactor(model.parameters())
""",
            message="Adafactor looks at whole tensors",
        ),
        Example(
            "an elementwise optimizer",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
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

_OF_WHOLE_TENSORS = re.compile(
    r"(Fused|Distributed|CPU)?(LAMB|Lamb|LARS|Lars|LARC|Ada[Ff]actor|Shampoo|Muon|SOAP|NovoGrad)"
)


def translate(constructor: Constructor) -> Translation | None:
    """What becomes of `use_orig_params`, given or not."""
    message = "FSDP2 always keeps the original parameters"
    translation = without_effect(constructor, "use_orig_params", RULE, message)
    optimizer = _optimizer_of_whole_tensors(constructor)
    if optimizer is None:
        return translation
    changed = (
        f"{optimizer} looks at whole tensors, which were flat shards under FSDP1 and are the parameters now: "
        "its steps change, and are those of a model that is not sharded"
    )
    if translation is None:
        return Translation(RULE, changed, Plain(), in_runtime=False, note=True)
    return replace(translation, message=f"{translation.message}; {changed}")


def _optimizer_of_whole_tensors(constructor: Constructor) -> str | None:
    """An optimizer around that is known not to treat elements one by one."""
    for module in constructor.context.project.connected(constructor.context.module):
        for call in module.calls:
            function = call.func
            name = function.attr if isinstance(function, ast.Attribute) else ""
            name = function.id if isinstance(function, ast.Name) else name
            if _OF_WHOLE_TENSORS.fullmatch(name):
                return name
    return None
