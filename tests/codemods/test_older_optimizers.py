"""Optimizers that are older than the sharding of their model, in the forms that programs give them."""

from __future__ import annotations

import pytest

from fsdp_migrate.codemods.optimizers.order import RULE
from fsdp_migrate.codemods.rule import Example

from .test_examples import analyse

EXAMPLES = (
    Example(
        "a model that is moved where it is wrapped",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = Net()
optimizer = torch.optim.AdamW(model.parameters())
model = FSDP(model.cuda(), use_orig_params=True)
""",
        """\
import torch
from torch.distributed.fsdp import fully_shard

model = Net()
model = fully_shard(model.cuda())
optimizer = torch.optim.AdamW(model.parameters())
""",
        message="moves behind",
    ),
    Example(
        "a part of the model",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

head = model.head
optimizer = torch.optim.AdamW(head.parameters())
model = FSDP(model, use_orig_params=True)
""",
        """\
import torch
from torch.distributed.fsdp import fully_shard

head = model.head
fully_shard(model)
optimizer = torch.optim.AdamW(head.parameters())
""",
        message="moves behind",
    ),
    Example(
        "a module around the model",
        """\
import torch
from peft import get_peft_model
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

optimizer = torch.optim.AdamW(model.parameters())
model = FSDP(get_peft_model(model, config), use_orig_params=True)
""",
        message="after the model is sharded",
    ),
    Example(
        "the model makes its optimizer",
        """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

optimizer = model.configure_optimizers(weight_decay=0.1)
model = FSDP(model, use_orig_params=True)
""",
        """\
from fsdp_migrate.runtime import remap_optimizer
from torch.distributed.fsdp import fully_shard

optimizer = model.configure_optimizers(weight_decay=0.1)
with remap_optimizer(optimizer, model):
    fully_shard(model)
""",
        message="remap_optimizer gives it the sharded parameters",
    ),
    Example(
        "built together",
        """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model, optimizer = build(args)
model = FSDP(model, use_orig_params=True)
""",
        """\
from fsdp_migrate.runtime import remap_optimizer
from torch.distributed.fsdp import fully_shard

model, optimizer = build(args)
with remap_optimizer(optimizer, model):
    fully_shard(model)
""",
        message="remap_optimizer gives it the sharded parameters",
    ),
    Example(
        "a method that is called before",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def run(self):
        self.build_optimizer()
        self.wrap()

    def build_optimizer(self):
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def wrap(self):
        self.model = FSDP(self.model, use_orig_params=True)
""",
        """\
import torch
from fsdp_migrate.runtime import remap_optimizer
from torch.distributed.fsdp import fully_shard


class Trainer:
    def run(self):
        self.build_optimizer()
        self.wrap()

    def build_optimizer(self):
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def wrap(self):
        with remap_optimizer(self.optimizer, self.model):
            fully_shard(self.model)
""",
        message="remap_optimizer gives it the sharded parameters",
    ),
    Example(
        "a method that is called afterwards",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def run(self):
        self.wrap()
        self.build_optimizer()

    def build_optimizer(self):
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def wrap(self):
        self.model = FSDP(self.model, use_orig_params=True)
""",
        """\
import torch
from torch.distributed.fsdp import fully_shard


class Trainer:
    def run(self):
        self.wrap()
        self.build_optimizer()

    def build_optimizer(self):
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def wrap(self):
        fully_shard(self.model)
""",
        quiet=True,
    ),
    Example(
        "a method that is called afterwards, through another",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, model):
        self.model = model
        self.prepare()
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def prepare(self):
        self.wrap()

    def wrap(self):
        self.model = FSDP(self.model, use_orig_params=True)
""",
        """\
import torch
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, model):
        self.model = model
        self.prepare()
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def prepare(self):
        self.wrap()

    def wrap(self):
        fully_shard(self.model)
""",
        quiet=True,
    ),
    Example(
        "a scheduler that a function makes",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def warmup(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 10, 1.0))


optimizer = build_optimizer(model)
scheduler = warmup(optimizer)
model = FSDP(model, use_orig_params=True)
""",
        """\
import torch
from fsdp_migrate.runtime import remap_optimizer
from torch.distributed.fsdp import fully_shard


def warmup(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 10, 1.0))


optimizer = build_optimizer(model)
scheduler = warmup(optimizer)
with remap_optimizer(optimizer, model):
    fully_shard(model)
""",
        message="remap_optimizer gives it the sharded parameters",
    ),
    Example(
        "a base class builds it",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.setup()


class Sharded(Trainer):
    def setup(self):
        self.model = FSDP(self.model, use_orig_params=True)
""",
        """\
import torch
from fsdp_migrate.runtime import remap_optimizer
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.setup()


class Sharded(Trainer):
    def setup(self):
        with remap_optimizer(self.optimizer, self.model):
            fully_shard(self.model)
""",
        message="remap_optimizer gives it the sharded parameters",
    ),
    Example(
        "an object that is given both",
        """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer

    def setup(self):
        self.model = FSDP(self.model, use_orig_params=True)

    def step(self):
        self.optimizer.step()
""",
        """\
from fsdp_migrate.runtime import remap_optimizer
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer

    def setup(self):
        with remap_optimizer(self.optimizer, self.model):
            fully_shard(self.model)

    def step(self):
        self.optimizer.step()
""",
        message="remap_optimizer gives it the sharded parameters",
    ),
    Example(
        "several models, wrapped in a loop",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

optimizers = {name: torch.optim.Adam(m.parameters()) for name, m in models.items()}
for name in models:
    models[name] = FSDP(models[name], use_orig_params=True)
""",
        message="after the model is sharded",
    ),
    Example(
        "several models, wrapped by a comprehension",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

optimizer = torch.optim.Adam(actor.parameters())
actor, critic = [FSDP(model, use_orig_params=True) for model in (actor, critic)]
""",
        message="after the model is sharded",
    ),
    Example(
        "an attribute by its name",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Agent:
    def __init__(self):
        self.actor = Net()
        self.optimizer = torch.optim.Adam(self.actor.parameters())
        self.shard()

    def shard(self):
        for name in ("actor", "critic"):
            setattr(self, name, FSDP(getattr(self, name), use_orig_params=True))
""",
        message="after the model is sharded",
    ),
    Example(
        "several models, and their optimizers afterwards",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

for name in models:
    models[name] = FSDP(models[name])
optimizers = {name: torch.optim.Adam(m.parameters()) for name, m in models.items()}
""",
        """\
import torch
from torch.distributed.fsdp import fully_shard

for name in models:
    models[name] = fully_shard(models[name])
optimizers = {name: torch.optim.Adam(m.parameters()) for name, m in models.items()}
""",
        quiet=True,
    ),
    Example(
        "a global model",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = Net()
optimizer = torch.optim.AdamW(model.parameters())


def main():
    wrapped = FSDP(model, use_orig_params=True)
    train(wrapped, optimizer)


main()
""",
        message="after the model is sharded",
    ),
    Example(
        "another model's optimizer",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

optimizer = torch.optim.AdamW(student.parameters())
teacher = FSDP(teacher.cuda())
""",
        """\
import torch
from torch.distributed.fsdp import fully_shard

optimizer = torch.optim.AdamW(student.parameters())
teacher = fully_shard(teacher.cuda())
""",
        quiet=True,
    ),
    Example(
        "groups that a function makes",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

groups = weight_decay_groups(model, 0.1)
optimizer = torch.optim.AdamW(groups)
model = FSDP(model, use_orig_params=True)
""",
        """\
import torch
from fsdp_migrate.runtime import remap_optimizer
from torch.distributed.fsdp import fully_shard

groups = weight_decay_groups(model, 0.1)
optimizer = torch.optim.AdamW(groups)
with remap_optimizer(optimizer, model):
    fully_shard(model)
""",
        message="remap_optimizer gives it the sharded parameters",
    ),
    Example(
        "parameters that a function took, and that are clipped later",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

trainable = trainable_of(model)
optimizer = torch.optim.AdamW(trainable)
model = FSDP(model, use_orig_params=True)
torch.nn.utils.clip_grad_norm_(trainable, 1.0)
""",
        message="after the model is sharded",
    ),
    Example(
        "parameters by name",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

optimizer = torch.optim.AdamW([model.weight, model.bias])
model = FSDP(model, use_orig_params=True)
""",
        """\
import torch
from fsdp_migrate.runtime import remap_optimizer
from torch.distributed.fsdp import fully_shard

optimizer = torch.optim.AdamW([model.weight, model.bias])
with remap_optimizer(optimizer, model):
    fully_shard(model)
""",
        message="remap_optimizer gives it the sharded parameters",
    ),
    Example(
        "parameters from a method",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(self.trainable())
        self.model = FSDP(self.model, use_orig_params=True)

    def trainable(self):
        return [p for p in self.model.parameters() if p.requires_grad]
""",
        """\
import torch
from fsdp_migrate.runtime import remap_optimizer
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(self.trainable())
        with remap_optimizer(self.optimizer, self.model):
            fully_shard(self.model)

    def trainable(self):
        return [p for p in self.model.parameters() if p.requires_grad]
""",
        message="remap_optimizer gives it the sharded parameters",
    ),
    Example(
        "groups that a function makes afterwards",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, use_orig_params=True)
optimizer = torch.optim.AdamW(weight_decay_groups(model, 0.1))
""",
        """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
optimizer = torch.optim.AdamW(weight_decay_groups(model, 0.1))
""",
        quiet=True,
    ),
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)
def test_becomes_what_it_says_and_stays_so(example: Example) -> None:
    report, after = analyse(example.before)
    assert after == (example.before if example.after is None else example.after)
    assert analyse(after)[1] == after
    own = [finding for finding in report.findings if finding.code == RULE.code]
    assert bool(own) is not example.quiet
    assert example.quiet or any(example.message in f"{f.construct} {f.message}" for f in own)
