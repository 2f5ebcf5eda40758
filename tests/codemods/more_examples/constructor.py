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
from fsdp_migrate.runtime import use_full_state_dicts
from torch.distributed.fsdp import fully_shard

from model import Net


def save(model, path):
    torch.save(model.state_dict(), path)


model = Net()
fully_shard(model)
use_full_state_dicts(model)
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

from torch.distributed.fsdp import fully_shard

from model import Actor, Critic

shard = partial(fully_shard, reshard_after_forward=False)
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

from model import Net

model = Net()
model.head = fully_shard(model.head)
model = fully_shard(model)
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
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from model import Net

precision = MixedPrecisionPolicy()
if torch.cuda.is_bf16_supported():
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
model = fully_shard(Net(), mp_policy=precision)
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
