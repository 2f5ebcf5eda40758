"""Programs for the rules of `codemods/constructor`."""

from ..pages import Example

ALSO = {
    "FSDP002": (
        Example(
            "a function that saves models of any kind",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net


def save(model, path):
    torch.save(model.state_dict(), path)


model = FSDP(Net())
save(model, "model.pt")
""",
            """\
import torch
from fsdp_migrate.runtime import like_fsdp1
from torch.distributed.fsdp import fully_shard

from model import Net


def save(model, path):
    torch.save(model.state_dict(), path)


model = Net()
with like_fsdp1(model):
    fully_shard(model)
save(model, "model.pt")
""",
        ),
        Example(
            "a partial that is only called",
            """\
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

from model import Actor, Critic

shard = partial(FSDP, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
actor, critic = shard(Actor()), shard(Critic())
""",
            """\
from functools import partial

from fsdp_migrate.runtime import ShardingStrategy, like_fsdp1, units
from torch.distributed.fsdp import fully_shard

from model import Actor, Critic


def shard_(module, *args, **kwargs):
    \"\"\"Shards a module with FSDP1's arguments, in place.\"\"\"
    with like_fsdp1(module):
        for unit, options in units(module, *args, **kwargs):
            fully_shard(unit, **options)
    return module


shard = partial(shard_, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
actor, critic = shard(Actor()), shard(Critic())
""",
        ),
        Example(
            "wrap inside of enable_wrap",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap

from model import Net

with enable_wrap(wrapper_cls=FSDP, use_orig_params=True):
    model = Net()
    model.head = wrap(model.head)
    model = wrap(model)
""",
            """\
from torch.distributed.fsdp import fully_shard
from fsdp_migrate.runtime import like_fsdp1, units
from fsdp_migrate.runtime.wrap import enable_wrap, wrap

from model import Net


def shard(module, *args, **kwargs):
    \"\"\"Shards a module with FSDP1's arguments, in place.\"\"\"
    with like_fsdp1(module):
        for unit, options in units(module, *args, **kwargs):
            fully_shard(unit, **options)
    return module


with enable_wrap(wrapper_cls=shard, use_orig_params=True):
    model = Net()
    model.head = wrap(model.head)
    model = wrap(model)
""",
        ),
    ),
    "FSDP213": (
        Example(
            "chosen when the program runs",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

from model import Net

precision = None
if torch.cuda.is_bf16_supported():
    precision = MixedPrecision(param_dtype=torch.bfloat16)
model = FSDP(Net(), mixed_precision=precision)
""",
            """\
import torch
from fsdp_migrate.runtime import like_fsdp1
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from model import Net

precision = MixedPrecisionPolicy()
if torch.cuda.is_bf16_supported():
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
model = Net()
with like_fsdp1(model):
    fully_shard(model, mp_policy=precision)
""",
        ),
    ),
}

QUIET = {
    "FSDP002": (
        Example(
            "a class of another package",
            """\
from fairscale.nn import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net())
""",
        ),
    ),
}
