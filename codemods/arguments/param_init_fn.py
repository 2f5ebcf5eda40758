"""`param_init_fn`, and models on the meta device without one: how parameters get their first values."""

from __future__ import annotations

from fsdp_migrate.codemods.constructor_call import Constructor
from fsdp_migrate.codemods.plan import Plain, Translation
from fsdp_migrate.codemods.rule import Example, Rule

FUNCTION = Rule(
    "FSDP210",
    "param-init-fn",
    "param_init_fn runs on each unit before it is sharded",
    """FSDP1 materialises the modules of one unit, initialises them, shards the unit, and goes on to the next, so that one
unit at a time is whole. Initialising after sharding, as guides have it, draws other random numbers, and on the CPU the same
ones for every shard. The runtime keeps FSDP1's order, and the values are FSDP1's bit for bit.""",
    (
        Example(
            "a function",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, param_init_fn=init)
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, param_init_fn=init)
""",
        ),
        Example(
            "None",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, param_init_fn=None)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
        Example(
            "a function on some ranks",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(
    model,
    param_init_fn=lambda m: m.to_empty(device=device, recurse=False) if rank != 0 else None,
)
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(
    model,
    param_init_fn=lambda m: m.to_empty(device=device, recurse=False) if rank != 0 else None,
)
""",
        ),
    ),
)
META = Rule(
    "FSDP211",
    "meta-init",
    "a model on the meta device is materialised unit by unit",
    """Without `param_init_fn`, FSDP1 materialises a model on the meta device by itself and calls `reset_parameters` of every
module. `fully_shard` leaves that to the program. Where the file builds models on the meta device, the call goes to the
runtime, which does as FSDP1 does.""",
    (
        Example(
            "built on the meta device",
            """\
import torch
from model import Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

with torch.device("meta"):
    model = Net()
model = FSDP(model)
""",
            """\
import torch
from model import Net
from fsdp_migrate.runtime import shard_model

with torch.device("meta"):
    model = Net()
model = shard_model(model)
""",
        ),
        Example(
            "built on the meta device by another library",
            """\
from accelerate import init_empty_weights
from model import Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

with init_empty_weights():
    model = Net()
model = FSDP(model)
""",
            """\
from accelerate import init_empty_weights
from model import Net
from fsdp_migrate.runtime import shard_model

with init_empty_weights():
    model = Net()
model = shard_model(model)
""",
        ),
    ),
)
RULES = (
    FUNCTION,
    META,
)


def translate(constructor: Constructor) -> Translation | None:
    """What becomes of `param_init_fn`, and of models on the meta device without one."""
    if constructor.is_none("param_init_fn"):
        if constructor.on_meta:
            return Translation(
                META, "shard_model materialises a model on the meta device as FSDP1 does"
            )
        if constructor.value("param_init_fn") is None:
            return None
        return Translation(FUNCTION, "None: nothing to initialise", Plain(), in_runtime=False)
    return Translation(
        FUNCTION, "shard_model initialises each unit before it shards it, as FSDP1 does"
    )
