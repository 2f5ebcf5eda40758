"""An optimizer that is built when the model has been evaluated already."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.expressions import shortened
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Rule
from fsdp_migrate.codemods.surroundings.forwards_above import forward_above
from fsdp_migrate.codemods.surroundings.parameters import Held, Parameters
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP502",
    "optimizer-after-forward",
    "an optimizer built after an evaluation takes the parameters of a model that is resharded first",
    """A forward leaves FSDP2's root gathered for the backward that follows, and with SHARD_GRAD_OP every unit. Where none
follows, as in an evaluation before training, `model.parameters()` are plain whole tensors: an optimizer of these steps
tensors that the next backward throws away. The parameters in question never train, **without an error** (pytorch#149205;
measured with torch 2.13 on two ranks: losses 4e-2 apart after 5 steps, with SHARD_GRAD_OP nothing trains at all). FSDP1
kept the parameter objects.

`resharded(model)` of the runtime frees what is gathered and gives the model back; the next forward gathers it again. It
changes nothing where the model has not been evaluated. It is put in where the function that takes the parameters, or one
that calls it, runs the model above that, directly or through a function of the project, and no backward follows.""",
    (
        Example(
            "an evaluation before training",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def evaluate(model, batches):
    with torch.no_grad():
        return sum(model(batch) for batch in batches)


model = FSDP(model)
print(evaluate(model, batches))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
""",
            """\
import torch
from fsdp_migrate.runtime import resharded
from torch.distributed.fsdp import fully_shard


def evaluate(model, batches):
    with torch.no_grad():
        return sum(model(batch) for batch in batches)


fully_shard(model)
print(evaluate(model, batches))
optimizer = torch.optim.AdamW(resharded(model).parameters(), lr=0.1)
""",
            message="left the model gathered",
        ),
        Example(
            "an optimizer that another function builds",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(model):
    return torch.optim.AdamW(list(model.parameters()))


model = FSDP(model)
with torch.no_grad():
    model(batch)
optimizer = build(model)
""",
            """\
import torch
from fsdp_migrate.runtime import resharded
from torch.distributed.fsdp import fully_shard


def build(model):
    return torch.optim.AdamW(list(resharded(model).parameters()))


fully_shard(model)
with torch.no_grad():
    model(batch)
optimizer = build(model)
""",
            message="left the model gathered",
        ),
        Example(
            "methods of a trainer",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, model):
        self.model = FSDP(model)

    def validate(self, batch):
        with torch.no_grad():
            return self.model(batch)

    def build(self):
        self.optimizer = torch.optim.AdamW(self.model.parameters())


trainer = Trainer(model)
trainer.validate(batch)
trainer.build()
""",
            """\
import torch
from fsdp_migrate.runtime import resharded
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, model):
        self.model = fully_shard(model)

    def validate(self, batch):
        with torch.no_grad():
            return self.model(batch)

    def build(self):
        self.optimizer = torch.optim.AdamW(resharded(self.model).parameters())


trainer = Trainer(model)
trainer.validate(batch)
trainer.build()
""",
            message="left the model gathered",
        ),
        Example(
            "a part of a model that cannot be put through a function",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model(batch)
optimizer = torch.optim.AdamW([model.head.weight])
""",
            message="resharded(model)",
        ),
        Example(
            "evaluated after the optimizer was built, and a backward between",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model(batch).sum().backward()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
evaluate(model)
model(batch)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
model(batch).sum().backward()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
evaluate(model)
model(batch)
""",
            quiet=True,
        ),
        Example(
            "what does not run the model, and another model that is run",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def describe(model):
    print(model)


model = FSDP(model)
describe(model)
teacher(batch)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard


def describe(model):
    print(model)


fully_shard(model)
describe(model)
teacher(batch)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_MESSAGE = "the forward in line {line} left the model gathered: resharded(model) gives the sharded parameters, which train"
_BY_HAND = "the forward in line {line} left the model gathered, and these train nothing: call resharded(model) first"


def find(context: Context, parameters: Parameters) -> Iterator[Draft]:
    """Parameters that an optimizer is given, taken below a forward of their model."""
    done: set[ast.expr] = set()
    for call, held in parameters.optimizers.items():
        if held.origin in done or held.origin not in context.module.parents:
            continue
        line = forward_above(context, context.module, held.origin, held, 0)
        if line:
            done.add(held.origin)
            yield _draft(context, held, call, line)


def _draft(context: Context, held: Held, optimizer: ast.Call, line: int) -> Draft:
    taking = held.origin
    construct = shortened(context.source(taking))
    if not (isinstance(taking, ast.Call) and isinstance(taking.func, ast.Attribute)):
        message = _BY_HAND.format(line=line)
        return Draft(RULE, taking, Action.MANUAL, message, construct, held.sites, silent=True)
    name, needs = context.name(RUNTIME, "resharded", use=taking)

    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.Attribute)
        model = cst.Call(cst.parse_expression(name), [cst.Arg(updated.value)])
        return Edited(updated.with_changes(value=model))

    edit = Edit(context.syntax.find(taking.func, cst.Attribute), apply)
    message = _MESSAGE.format(line=line)
    return Draft(
        RULE,
        taking,
        Action.RUNTIME,
        message,
        construct,
        held.sites,
        edits=(edit,),
        needs=needs,
    )
