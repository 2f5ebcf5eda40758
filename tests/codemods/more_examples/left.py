"""Programs for the rules of `codemods/left`."""

from ..pages import Example, bridged

ALSO = {
    "FSDP366": (
        bridged(
            "the flat parameters of one model after the other",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def units(model):
    return FSDP.fsdp_modules(model)


for name, unit in zip(names, units(teacher)):
    average = [p.mul_(0.9) for p in unit.params]
    print(name.params)
""",
            message="use parameters() of the whole model, once",
        ),
    ),
    "FSDP010": (
        Example(
            "a patch in a test",
            """\
from unittest.mock import patch


@patch("torch.distributed.fsdp.FullyShardedDataParallel")
def test_wrapping(wrapper):
    ...
""",
            """\
from unittest.mock import patch


@patch("fsdp_migrate.runtime.FullyShardedDataParallel")
def test_wrapping(wrapper):
    ...
""",
        ),
        Example(
            "a class by its path, in a configuration",
            """\
config = {"_target_": "torch.distributed.fsdp.FullyShardedDataParallel", "use_orig_params": True}
""",
            message="on FSDP2 it is fsdp_migrate.runtime.FullyShardedDataParallel",
        ),
        Example(
            "classes of Hydra's",
            """\
fsdp:
  _target_: torch.distributed.fsdp.FullyShardedDataParallel
  _partial_: true
""",
            message="on FSDP2 it is fsdp_migrate.runtime.FullyShardedDataParallel",
            file="fsdp.yaml",
        ),
        Example(
            "a member, under any key",
            """\
{"model": [{"sharding": "torch.distributed.fsdp.ShardingStrategy.FULL_SHARD"}]}
""",
            message="on FSDP2 it is fsdp_migrate.runtime.ShardingStrategy.FULL_SHARD",
            file="model.json",
        ),
        Example(
            "a patch of a method",
            """\
from unittest.mock import patch

with patch("torch.distributed.fsdp.FullyShardedDataParallel.clip_grad_norm_", return_value=1.0):
    train()
""",
            """\
from unittest.mock import patch

with patch("fsdp_migrate.runtime.FullyShardedDataParallel.clip_grad_norm_", return_value=1.0):
    train()
""",
        ),
        Example(
            "an import by another name, and by keyword",
            """\
from importlib import import_module as load

fsdp = load("torch.distributed.fsdp")
wrap = load(name="torch.distributed.fsdp.wrap")
""",
            """\
from importlib import import_module as load

fsdp = load("fsdp_migrate.runtime")
wrap = load(name="fsdp_migrate.runtime.wrap")
""",
        ),
        Example(
            "a table of lazy imports",
            """\
import importlib

_LAZY = {"FSDP": ("torch.distributed.fsdp", "FullyShardedDataParallel")}


def __getattr__(name):
    module, member = _LAZY[name]
    return getattr(importlib.import_module(module), member)
""",
            message="on FSDP2 it is fsdp_migrate.runtime",
        ),
        Example(
            "a name for the path",
            """\
import importlib

PATH = "torch.distributed.fsdp"
fsdp = importlib.import_module(PATH)
""",
            message="on FSDP2 it is fsdp_migrate.runtime",
        ),
        Example(
            "a function that may import",
            """\
fsdp = optional_import("torch.distributed.fsdp")
""",
            message="on FSDP2 it is fsdp_migrate.runtime",
        ),
        Example(
            "an import that gives torch",
            """\
torch = __import__("torch.distributed.fsdp")
""",
            message="on FSDP2 it is fsdp_migrate.runtime",
        ),
    ),
    "FSDP014": (
        Example(
            "through a module",
            """\
import torch.distributed.fsdp._traversal_utils as traversal_utils

for handle in traversal_utils._get_fsdp_handles(model):
    print(handle)
""",
            message="FSDP2 has no handles",
        ),
        Example(
            "the class of flat parameters",
            """\
from torch.distributed.fsdp import FlatParameter

flat = [p for p in model.parameters() if isinstance(p, FlatParameter)]
""",
            message="unit.parameters() are DTensors",
        ),
    ),
    "FSDP302": (
        bridged(
            "a model in a dataclass, an attribute and a wrapper",
            """\
from dataclasses import dataclass

import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


@dataclass
class Models:
    generator: nn.Module
    critic: nn.Module


class Trainer:
    def __init__(self, generator, critic):
        self.models = Models(generator=FSDP(generator, **options), critic=critic)

    def step(self, limit):
        nn.utils.clip_grad_norm_(self.models.generator.parameters(), limit)
        nn.utils.clip_grad_norm_(self.models.critic.parameters(), limit)
""",
            message="clips by the norm over all ranks",
        ),
        bridged(
            "two branches that are about something else",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, **options)
if scaler is not None:
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
else:
    model.clip_grad_norm_(1.0)
""",
            message="by the norm over all ranks",
        ),
    ),
    "FSDP507": (
        bridged(
            "a count that is summed over ranks",
            """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
count = torch.tensor(sum(p.numel() for p in model.parameters()))
dist.all_reduce(count)
""",
            message="on every rank",
        ),
        bridged(
            "norms that ranks do not add up",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
ratios = [torch.norm(p) / torch.norm(p.grad) for p in model.parameters()]
""",
            message="local_shard(p)",
        ),
    ),
}

QUIET = {
    "FSDP521": (
        bridged(
            "optimizers that work, and one of another model",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
other = torch.optim.SGD(model.parameters(), lr=0.1, fused=False)
third = torch.optim.Rprop(critic.parameters())
""",
        ),
    ),
    "FSDP522": (
        bridged(
            "whole parameters, other models, and what is no parameter",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
noise = torch.randn_like(model(batch))
for p in critic.parameters():
    p.normal_()
with FSDP.summon_full_params(model):
    for p in model.parameters():
        p.add_(torch.randn_like(p))
""",
        ),
    ),
    "FSDP010": (
        Example(
            "what Lightning's strategy takes, and FSDP2",
            """\
strategy:
  class_path: lightning.pytorch.strategies.FSDPStrategy
  init_args:
    mixed_precision:
      class_path: torch.distributed.fsdp.MixedPrecision
""",
            file="lightning.yaml",
        ),
        Example(
            "FSDP2 by its path",
            "shard:\n  _target_: torch.distributed.fsdp.fully_shard\n",
            file="plain.yaml",
        ),
        Example(
            "names of FSDP2",
            """\
from unittest.mock import patch

with patch("torch.distributed.fsdp.fully_shard") as sharded:
    build()
""",
        ),
        Example(
            "words",
            """\
import importlib.util
import logging

import pytest

pytest.importorskip("torch.distributed.fsdp")
known = importlib.util.find_spec("torch.distributed.fsdp") is not None
known &= is_importable("torch.distributed.fsdp")
logging.getLogger("torch.distributed.fsdp").setLevel(logging.ERROR)
own = [name for name in names if name.startswith("torch.distributed.fsdp")]
wrapped = type(model).__name__ == "FullyShardedDataParallel"
""",
        ),
    ),
    "FSDP014": (
        Example(
            "what only looks at names",
            """\
from torch.distributed.fsdp._common_utils import clean_tensor_name

names = [clean_tensor_name(name) for name, _ in model.named_parameters()]
""",
        ),
        Example(
            "FSDP2's own private parts",
            """\
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

FSDPParam._init_sharded_param = patched
""",
        ),
    ),
    "FSDP302": (
        bridged(
            "the branch for other models",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, **options) if sharded else model
if isinstance(model, FSDP):
    model.clip_grad_norm_(1.0)
else:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
        ),
        bridged(
            "a model that has no method of its own",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, **options) if sharded else model
try:
    norm = model.clip_grad_norm_(1.0)
except AttributeError:
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
        ),
        bridged(
            "a base class whose subclass for FSDP clips in its own way",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Strategy:
    def clip(self, model, limit):
        return torch.nn.utils.clip_grad_norm_(model.parameters(), limit)


class FSDPStrategy(Strategy):
    def clip(self, model, limit):
        return model.clip_grad_norm_(limit)


model = FSDP(model, **options)
strategy.clip(model, 1.0)
""",
        ),
        bridged(
            "ignored parameters, and a norm that is the same on every rank",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, ignored_modules=[model.head])
model.clip_grad_norm_(1.0, float("inf"))
""",
        ),
        bridged(
            "by value, and another model",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, **options)
torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
torch.nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
""",
        ),
    ),
    "FSDP361": (
        bridged(
            "a hook on a model of DDP",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

if sharded:
    model = FSDP(model)
else:
    model = DDP(model)
    model.register_comm_hook(state, hook)
""",
        ),
    ),
    "FSDP366": (
        bridged(
            "names with the wrapper's prefix, and the module inside",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
names = [name.replace("_fsdp_wrapped_module.", "") for name, _ in model.named_parameters()]
head = [p for n, p in model.named_parameters() if n.startswith("_fsdp_wrapped_module.head")]
inner = model._fsdp_wrapped_module if hasattr(model, "_fsdp_wrapped_module") else model
""",
        ),
        bridged(
            "a handle of something else",
            """\
from torch.distributed.fsdp import ShardingStrategy


class Server:
    def __init__(self, handle, strategy: ShardingStrategy):
        self._handle = handle

    def stop(self):
        self._handle.kill()
""",
        ),
    ),
    "FSDP368": (
        bridged(
            "another use of a handle",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model._handle.unshard()
""",
        ),
    ),
    "FSDP506": (
        bridged(
            "hooks on outputs, and on modules",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model.register_forward_hook(print)
output = model(batch)
output.register_hook(print)
""",
        ),
    ),
    "FSDP507": (
        bridged(
            "names of original parameters, and names that decide nothing",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, use_orig_params=True)
rest = [p for name, p in model.named_parameters() if name.endswith("bias")]
print([name for name, p in model.named_parameters() if p.requires_grad])
""",
        ),
        bridged(
            "taken before the model is sharded",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(model):
    large = [name for name, p in model.named_parameters() if p.ndim >= 2]
    return FSDP(model), large
""",
        ),
        bridged(
            "a number that is counted before, and another model's parameters",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

print(sum(p.numel() for p in model.parameters() if p.requires_grad))
model = FSDP(model)
norm = sum(p.grad.norm() for p in critic.parameters())
""",
        ),
        bridged(
            "whole parameters",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
with FSDP.summon_full_params(model, writeback=False):
    matrices = [p for p in model.parameters() if p.ndim == 2]
    arrays = [p.detach().cpu().numpy() for p in model.parameters()]
""",
        ),
        bridged(
            "arithmetic that is the same",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model, ema = FSDP(model), FSDP(ema)
for p, average in zip(model.parameters(), ema.parameters()):
    p.grad.mul_(0.5)
    average.data.mul_(0.9).add_(p.data, alpha=0.1)
""",
        ),
    ),
    "FSDP520": (
        bridged(
            "of another model",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.optim import _apply_optimizer_in_backward

model = FSDP(model, use_orig_params=True)
_apply_optimizer_in_backward(torch.optim.SGD, teacher.parameters(), {"lr": 0.1})
""",
        ),
    ),
}
