"""Programs for the rules of `codemods/uses`."""

from functools import partial

from ..pages import Example, bridged

# A use that stays though the form is not the bridge's.
stays = partial(bridged, form="auto")

ALSO = {
    "FSDP009": (
        Example(
            "asking first",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net())
raw = model.module if hasattr(model, "module") else model
""",
            """\
from fsdp_migrate.runtime import like_fsdp1
from torch.distributed.fsdp import fully_shard

from model import Net

model = Net()
with like_fsdp1(model):
    fully_shard(model)
raw = model.module if hasattr(model, "module") else model
""",
        ),
        Example(
            "a model that may be another",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net


def config(model):
    return model.module.config


print(config(FSDP(Net())))
""",
            """\
from fsdp_migrate.runtime import like_fsdp1, units
from torch.distributed.fsdp import fully_shard

from model import Net


def config(model):
    return model.module.config


def shard(module, *args, **kwargs):
    \"\"\"Shards a module with FSDP1's arguments, in place.\"\"\"
    with like_fsdp1(module):
        for unit, options in units(module, *args, **kwargs):
            fully_shard(unit, **options)
    return module


print(config(shard(Net())))
""",
        ),
    ),
    "FSDP331": (
        Example(
            "shards, in the words of torch.distributed.checkpoint",
            """\
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


class Trainer:
    def save(self, path):
        with FSDP.state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT):
            state = {"model": self.model.state_dict()}
            state["scheduler"] = self.scheduler.state_dict()
            dcp.save(state, checkpoint_id=path)
""",
            """\
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict


class Trainer:
    def save(self, path):
        state = {"model": get_model_state_dict(self.model)}
        state["scheduler"] = self.scheduler.state_dict()
        dcp.save(state, checkpoint_id=path)
""",
        ),
        stays(
            "with the states of an optimizer",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    state = {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer)}
""",
            message="FSDP.optim_state_dict` depends on the state-dict type",
        ),
        stays(
            "a function that is given the model",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
    save(model, model.state_dict())
""",
            message="passed on",
        ),
        Example(
            "rank 0 of a process group",
            """\
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)

model = FSDP(model, process_group=group)
policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
    state = model.state_dict()
""",
            """\
from fsdp_migrate.runtime import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
    like_fsdp1,
    units,
)
from torch.distributed.fsdp import fully_shard

with like_fsdp1(model):
    for module, options in units(model, process_group=group):
        fully_shard(module, **options)
policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
    state = model.state_dict()
""",
            message="may not be rank 0 of all",
        ),
        stays(
            "on the CPU of every rank",
            """\
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)

policy = FullStateDictConfig(offload_to_cpu=True)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
    state = model.state_dict()
""",
            message="no option says",
        ),
        stays(
            "loading a whole state dict",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
    model.load_state_dict(state)
""",
            message="missing keys",
        ),
        stays(
            "a type from the configuration",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

with FSDP.state_dict_type(model, config.state_dict_type):
    state = model.state_dict()
""",
            message="known only when the program runs",
        ),
    ),
    "FSDP334": (
        stays(
            "a default",
            """\
from torch.distributed.fsdp import StateDictType


class Config:
    checkpoint_type: StateDictType = StateDictType.LOCAL_STATE_DICT
""",
            message="raises",
        ),
    ),
    "FSDP335": (
        stays(
            "the type currently set decides",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

state = FSDP.optim_state_dict(model, optimizer)
""",
            message="type currently set",
        ),
    ),
    "FSDP351": (
        Example(
            "parameters in float16",
            """\
import torch
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

model = Net().half()
scaler = ShardedGradScaler()
""",
            """\
import torch
from fsdp_migrate.runtime import ShardedGradScaler

model = Net().half()
scaler = ShardedGradScaler()
""",
            message="float16",
        ),
        Example(
            "an optimizer of parameters that are not sharded",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

model = FSDP(Net(), **options)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
scaler = ShardedGradScaler()
""",
            """\
import torch
from fsdp_migrate.runtime import ShardedGradScaler, like_fsdp1, units
from torch.distributed.fsdp import fully_shard

model = Net()
with like_fsdp1(model):
    for module, options_ in units(model, **options):
        fully_shard(module, **options_)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
scaler = ShardedGradScaler()
""",
            message="no model shards",
        ),
    ),
}

QUIET = {
    "FSDP007": (
        stays(
            "a loop over what is no wrapper",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def inner(model):
    return [m for m in model.modules() if not isinstance(m, FSDP)]
""",
        ),
    ),
    "FSDP301": (
        Example(
            "a method of the same name of something else",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net


class Agent:
    def clip_grad_norm_(self, limit): ...


agent, model = Agent(), FSDP(Net(), **options)
agent.clip_grad_norm_(1.0)
""",
            """\
from fsdp_migrate.runtime import like_fsdp1, units
from torch.distributed.fsdp import fully_shard

from model import Net


class Agent:
    def clip_grad_norm_(self, limit): ...


def shard(module, *args, **kwargs):
    \"\"\"Shards a module with FSDP1's arguments, in place.\"\"\"
    with like_fsdp1(module):
        for unit, options in units(module, *args, **kwargs):
            fully_shard(unit, **options)
    return module


agent, model = Agent(), shard(Net(), **options)
agent.clip_grad_norm_(1.0)
""",
        ),
    ),
    "FSDP311": (
        Example(
            "another library's",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, **options)
with accelerator.no_sync(other):
    loss.backward()
""",
            """\
from fsdp_migrate.runtime import like_fsdp1, units
from torch.distributed.fsdp import fully_shard

with like_fsdp1(model):
    for module, options_ in units(model, **options):
        fully_shard(module, **options_)
with accelerator.no_sync(other):
    loss.backward()
""",
        ),
    ),
    "FSDP322": (
        Example(
            "before the sharding",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net, init_weights

model = Net()
model.apply(init_weights)
model = FSDP(model)
""",
            """\
from fsdp_migrate.runtime import like_fsdp1
from torch.distributed.fsdp import fully_shard

from model import Net, init_weights

model = Net()
model.apply(init_weights)
with like_fsdp1(model):
    fully_shard(model)
""",
        ),
    ),
    "FSDP331": (
        Example(
            "functions that take the type themselves, and other state dicts",
            """\
from torch.distributed.checkpoint.state_dict import get_model_state_dict

state = get_model_state_dict(model)
self.optimizer.load_state_dict(state)
kind = plugin.state_dict_type
""",
        ),
    ),
    "FSDP332": (
        Example(
            "another class, another object",
            """\
from fairscale.nn import FullyShardedDataParallel as FSDP

FSDP.set_state_dict_type(model, kind)
plugin.set_state_dict_type("SHARDED_STATE_DICT")
""",
        ),
    ),
    "FSDP333": (
        Example(
            "a model that may be another's",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

if config.fsdp:
    model = FSDP(model, sharding_strategy=config.strategy)
else:
    model = DDP(model)
states = model.state_dict()
""",
            """\
from fsdp_migrate.runtime import like_fsdp1, units
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

if config.fsdp:
    with like_fsdp1(model):
        for module, options in units(model, sharding_strategy=config.strategy):
            fully_shard(module, **options)
else:
    model = DDP(model)
states = model.state_dict()
""",
        ),
        Example(
            "before the model is wrapped",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

states = model.state_dict()
model = FSDP(model, sharding_strategy=config.strategy)
""",
            """\
from fsdp_migrate.runtime import like_fsdp1, units
from torch.distributed.fsdp import fully_shard

states = model.state_dict()
with like_fsdp1(model):
    for module, options in units(model, sharding_strategy=config.strategy):
        fully_shard(module, **options)
""",
        ),
    ),
    "FSDP334": (
        stays(
            "a comparison",
            """\
from torch.distributed.fsdp import StateDictType

if config.checkpoint_type == StateDictType.LOCAL_STATE_DICT:
    raise ValueError("choose another type")
""",
        ),
    ),
    "FSDP335": (
        Example(
            "an optimizer's own states",
            """\
optimizer.load_state_dict(saved)
scheduler.load_state_dict(other)
state = helper.full_optim_state_dict(model, optimizer)
""",
        ),
    ),
    "FSDP351": (
        stays(
            "another scaler",
            """\
import torch
from torch.distributed.fsdp import ShardingStrategy

strategy = ShardingStrategy.NO_SHARD
scaler = torch.amp.GradScaler()
""",
        ),
    ),
}
