"""Optimizers that do not step every number by itself, or whose kernels do not know DTensors."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import given_for
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.codemods.surroundings.parameters import Parameters
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP517",
    "optimizer-kind",
    "optimizers that fail on DTensors, or that see whole parameters now",
    """FSDP1 gave an optimizer plain tensors of one dimension, FSDP2 gives it DTensors of the parameter's own shape.

- Bitwise the same with either (torch 2.13, two ranks): Adam, AdamW (also fused and foreach), SGD, Adagrad, Adadelta, Adamax,
  NAdam, RAdam, RMSprop, ASGD.
- Fail with an FSDP2 model: `SGD(fused=True)`, `Rprop`, `Adafactor`, `LBFGS` of `torch.optim`. Leave `fused` away, or take
  another.
- Optimizers that look at rows, columns or the norm of a parameter (LAMB, LARS, Adafactor, Shampoo, SOAP, Muon) saw slices of
  a flat buffer under FSDP1, cut wherever a rank's share ended, and see parameters now: **training changes**, to what the
  optimizer is meant to do if it knows DTensors. Those that do not read the norm of one rank's shard; ask their authors.
- 8-bit optimizers work on raw memory: bitsandbytes' do not take DTensors (bitsandbytes#89), torchao's do.""",
    (
        Example(
            "a fused SGD",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
# fsdp-migrate: FSDP517 by hand: fails on DTensors: leave fused=True away
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
""",
            message="leave fused=True away",
        ),
        Example(
            "an optimizer of rows and columns",
            """\
from shampoo import Shampoo
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
optimizer = Shampoo(model.parameters(), lr=0.1)
""",
            """\
from shampoo import Shampoo
from torch.distributed.fsdp import fully_shard

fully_shard(model)
# fsdp-migrate: FSDP517 by hand: sees whole parameters as DTensors, and saw flat slices under FSDP1: training changes
optimizer = Shampoo(model.parameters(), lr=0.1)
""",
            message="training changes",
        ),
        Example(
            "an optimizer of 8 bits",
            """\
import bitsandbytes as bnb
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
optimizer = bnb.optim.AdamW8bit(model.parameters(), lr=0.1)
""",
            """\
import bitsandbytes as bnb
from torch.distributed.fsdp import fully_shard

fully_shard(model)
# fsdp-migrate: FSDP517 by hand: works on raw memory and does not take DTensors: torchao's 8-bit optimizers do
optimizer = bnb.optim.AdamW8bit(model.parameters(), lr=0.1)
""",
            message="torchao's",
        ),
        Example(
            "optimizers that are the same",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
another = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
another = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
""",
            quiet=True,
        ),
        Example(
            "of another model",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
optimizer = torch.optim.LBFGS(critic.parameters())
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
optimizer = torch.optim.LBFGS(critic.parameters())
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_FAILING = frozenset(f"torch.optim.{name}" for name in ("Rprop", "Adafactor", "LBFGS"))
_OF_WHOLE_PARAMETERS = ("lamb", "lars", "shampoo", "soap", "muon", "adafactor", "sm3", "galore")
_BITS = ("8bit", "4bit")

_FAILS = "fails on DTensors: Adam, AdamW, SGD and most others of torch.optim do not"
_FUSED = "fails on DTensors: leave fused=True away"
_RAW = "works on raw memory and does not take DTensors: torchao's 8-bit optimizers do"
_WHOLE = "sees whole parameters as DTensors, and saw flat slices under FSDP1: training changes"


def find(context: Context, parameters: Parameters) -> Iterator[Draft]:
    """Optimizers of FSDP1 models for which DTensors are not the same as flat shards."""
    for call, held in parameters.optimizers.items():
        if held.module is not context.module:
            continue
        message = _said_of(context, call)
        if message:
            construct = f"{context.source(call.func)}(...)"
            yield Draft(RULE, call, Action.MANUAL, message, construct, held.sites, mark=True)


def _said_of(context: Context, call: ast.Call) -> str:
    paths = context.project.dotted(call.func, context.module) or {ast.unparse(call.func)}
    names = {path.rpartition(".")[2].lower() for path in paths}
    fused = given_for(call, "fused")
    if "torch.optim.SGD" in paths and isinstance(fused, ast.Constant) and fused.value is True:
        return _FUSED
    if paths & _FAILING:
        return _FAILS
    if any(name.endswith(_BITS) for name in names):
        return "" if any(path.startswith("torchao.") for path in paths) else _RAW
    return _WHOLE if any(word in name for name in names for word in _OF_WHOLE_PARAMETERS) else ""
