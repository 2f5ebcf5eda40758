"""Programs that zero gradients beside an accumulation, before and after."""

from __future__ import annotations

from fsdp_migrate.codemods.rule import Example

EXAMPLES = (
    Example(
        "at the start of an epoch",
        """\
from contextlib import nullcontext

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
for epoch in range(epochs):
    optimizer.zero_grad()  # drop what the last epoch left over
    for step, batch in enumerate(loader):
        last = step % 4 == 3
        with nullcontext() if last else model.no_sync():
            model(batch).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
""",
        """\
from contextlib import nullcontext

from fsdp_migrate.runtime import discard_unsynced_gradients, no_sync
from torch.distributed.fsdp import fully_shard

fully_shard(model)
for epoch in range(epochs):
    optimizer.zero_grad()  # drop what the last epoch left over
    discard_unsynced_gradients(model)
    for step, batch in enumerate(loader):
        last = step % 4 == 3
        with nullcontext() if last else no_sync(model):
            model(batch).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
""",
    ),
    Example(
        "a model that is known inside the loop only",
        """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

models = [FSDP(net) for net in nets]
optimizer.zero_grad()
for step, batch in enumerate(loader):
    for model in models:
        with model.no_sync():
            model(batch).backward()
        if step % 4 == 3:
            optimizer.step()
""",
        """\
from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import fully_shard

models = [fully_shard(net) for net in nets]
# fsdp-migrate: FSDP314 by hand: zero_grad() misses unreduced gradients: add discard_unsynced_gradients of the runtime
optimizer.zero_grad()
for step, batch in enumerate(loader):
    for model in models:
        with no_sync(model):
            model(batch).backward()
        if step % 4 == 3:
            optimizer.step()
""",
        message="discard_unsynced_gradients",
    ),
    Example(
        "two models, and an optimizer that has one of them",
        """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

actor, critic = FSDP(actor), FSDP(critic)
actor.zero_grad()
optimizer.zero_grad()
for batch in loader:
    with actor.no_sync(), critic.no_sync():
        loss(batch).backward()
    optimizer.step()
""",
        """\
from fsdp_migrate.runtime import discard_unsynced_gradients, no_sync
from torch.distributed.fsdp import fully_shard

actor, critic = fully_shard(actor), fully_shard(critic)
actor.zero_grad()
discard_unsynced_gradients(actor)
# fsdp-migrate: FSDP314 by hand: zero_grad() misses unreduced gradients: add discard_unsynced_gradients of the runtime
optimizer.zero_grad()
for batch in loader:
    with no_sync(actor), no_sync(critic):
        loss(batch).backward()
    optimizer.step()
""",
    ),
    Example(
        "a function of the program's that accumulates",
        """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def backward(model: FSDP, loss, last):
    if not last:
        with model.no_sync():
            return loss.backward()
    loss.backward()


def train(model: FSDP, loader):
    model.zero_grad(set_to_none=True)
    for step, batch in enumerate(loader):
        last = step % 4 == 3
        backward(model, model(batch), last)
        if last:
            optimizer.step()
            model.zero_grad(set_to_none=True)
""",
        """\
from fsdp_migrate.runtime import discard_unsynced_gradients, no_sync
from torch.distributed.fsdp import FSDPModule


def backward(model: FSDPModule, loss, last):
    if not last:
        with no_sync(model):
            return loss.backward()
    loss.backward()


def train(model: FSDPModule, loader):
    model.zero_grad(set_to_none=True)
    discard_unsynced_gradients(model)
    for step, batch in enumerate(loader):
        last = step % 4 == 3
        backward(model, model(batch), last)
        if last:
            optimizer.step()
            model.zero_grad(set_to_none=True)
""",
    ),
    Example(
        "an optimizer, of a model that is not in sight",
        """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, net):
        self.model = FSDP(net)

    def backward(self, loss):
        with self.model.no_sync():
            loss.backward()

    def train(self, loader):
        self.optimizer.zero_grad()
        for step, batch in enumerate(loader):
            self.micro_step(step, batch)
            if step % 4 == 3:
                self.optimizer.zero_grad()
""",
        """\
from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, net):
        self.model = fully_shard(net)

    def backward(self, loss):
        with no_sync(self.model):
            loss.backward()

    def train(self, loader):
        # fsdp-migrate: FSDP314 by hand: zero_grad() misses unreduced gradients: add discard_unsynced_gradients of the runtime
        self.optimizer.zero_grad()
        for step, batch in enumerate(loader):
            self.micro_step(step, batch)
            if step % 4 == 3:
                self.optimizer.zero_grad()
""",
        message="discard_unsynced_gradients",
    ),
    Example(
        "every accumulation comes to its end",
        """\
from contextlib import nullcontext

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
for batches in loader:
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        with nullcontext() if i == len(batches) - 1 else model.no_sync():
            model(batch).backward()
    optimizer.step()
""",
        """\
from contextlib import nullcontext

from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import fully_shard

fully_shard(model)
for batches in loader:
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        with nullcontext() if i == len(batches) - 1 else no_sync(model):
            model(batch).backward()
    optimizer.step()
""",
        quiet=True,
    ),
    Example(
        "a method that accumulates and steps",
        """\
from contextlib import nullcontext

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, net):
        self.model = FSDP(net)
        self.done = 0

    def context(self):
        return self.model.no_sync() if self.done % 4 < 3 else nullcontext()

    def micro_step(self, batch):
        with self.context():
            self.model(batch).backward()
        self.done += 1
        if self.done % 4 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def epoch(self, loader):
        self.optimizer.zero_grad()
        for batch in loader:
            self.micro_step(batch)
""",
        """\
from contextlib import nullcontext

from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, net):
        self.model = fully_shard(net)
        self.done = 0

    def context(self):
        return no_sync(self.model) if self.done % 4 < 3 else nullcontext()

    def micro_step(self, batch):
        with self.context():
            self.model(batch).backward()
        self.done += 1
        if self.done % 4 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def epoch(self, loader):
        # fsdp-migrate: FSDP314 by hand: zero_grad() misses unreduced gradients: add discard_unsynced_gradients of the runtime
        self.optimizer.zero_grad()
        for batch in loader:
            self.micro_step(batch)
""",
        message="discard_unsynced_gradients",
    ),
    Example(
        "a method that does a whole step",
        """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, net):
        self.model = FSDP(net)

    def micro_step(self, batch, last):
        if last:
            return self.model(batch).backward()
        with self.model.no_sync():
            self.model(batch).backward()

    def step(self, batches):
        self.optimizer.zero_grad()
        for i, batch in enumerate(batches):
            self.micro_step(batch, last=i == len(batches) - 1)
        self.optimizer.step()
""",
        """\
from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, net):
        self.model = fully_shard(net)

    def micro_step(self, batch, last):
        if last:
            return self.model(batch).backward()
        with no_sync(self.model):
            self.model(batch).backward()

    def step(self, batches):
        self.optimizer.zero_grad()
        for i, batch in enumerate(batches):
            self.micro_step(batch, last=i == len(batches) - 1)
        self.optimizer.step()
""",
        quiet=True,
    ),
)
