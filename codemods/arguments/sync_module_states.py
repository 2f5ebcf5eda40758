"""`sync_module_states`: whether all ranks start from rank 0's parameters and buffers."""

from __future__ import annotations

from fsdp_migrate.codemods.constructor_call import Constructor
from fsdp_migrate.codemods.context import RUNTIME
from fsdp_migrate.codemods.expressions import enclosed
from fsdp_migrate.codemods.plan import Plain, Translation, is_pure
from fsdp_migrate.codemods.rule import Example, Rule

RULE = Rule(
    "FSDP208",
    "sync-module-states",
    "sync_module_states=True is a broadcast before sharding",
    """Ranks that start from different weights train a model whose shards come from different initialisations, and nothing
says so. FSDP1's `sync_module_states=True` broadcast parameters and buffers from rank 0 (`_init_utils.py`,
`_sync_module_params_and_buffers`); FSDP2 has nothing like it.

The runtime's `broadcast_module_states` does it in front of the first `fully_shard`, for buffers that are in no state dict as
well. FSDP1 moved the model to `device_id` first, because NCCL cannot send from the CPU: that is the function's `device`. A
model that may be on the meta device, or of which another constructor may wrap a part, goes to `shard_model`, which
broadcasts unit by unit as FSDP1 does, and so does a model on some of the ranks only.

Without the argument each rank shards its own values, under FSDP1 as under FSDP2. That is no change, so nothing is said of
it.""",
    (
        Example(
            "a broadcast",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, sync_module_states=True)
""",
            """\
from fsdp_migrate.runtime import broadcast_module_states
from torch.distributed.fsdp import fully_shard

broadcast_module_states(model)
fully_shard(model)
""",
        ),
        Example(
            "a model that is on the CPU until then",
            """\
import torch
from model import Block, Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

model = FSDP(
    Net(),
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    device_id=torch.cuda.current_device(),
    sync_module_states=True,  # every rank has drawn its own
)
""",
            """\
import torch
from model import Block, Net
from fsdp_migrate.runtime import broadcast_module_states
from torch.distributed.fsdp import fully_shard

# every rank has drawn its own
model = Net()
broadcast_module_states(model, device=torch.cuda.current_device())
for module in reversed(list(model.modules())):
    if module is not model and isinstance(module, Block):
        fully_shard(module)
fully_shard(model)
""",
        ),
        Example(
            "known only when the program runs",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, sync_module_states=config.low_memory)
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, sync_module_states=config.low_memory)
""",
        ),
        Example(
            "rank 0 alone has values",
            """\
import torch
from model import Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

with torch.device("cpu" if rank == 0 else "meta"):
    model = Net()
model = FSDP(
    model,
    sync_module_states=True,
    param_init_fn=lambda m: m.to_empty(device="cuda", recurse=False),
)
""",
            """\
import torch
from model import Net
from fsdp_migrate.runtime import shard_model

with torch.device("cpu" if rank == 0 else "meta"):
    model = Net()
model = shard_model(
    model,
    sync_module_states=True,
    param_init_fn=lambda m: m.to_empty(device="cuda", recurse=False),
)
""",
        ),
        Example(
            "a part of the model has a constructor of its own",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model.encoder = FSDP(model.encoder, sync_module_states=True)
model = FSDP(model, sync_module_states=True)
""",
            """\
from fsdp_migrate.runtime import shard_model

model.encoder = shard_model(model.encoder, sync_module_states=True)
model = shard_model(model, sync_module_states=True)
""",
        ),
        Example(
            "none",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, sync_module_states=False)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
    ),
)
RULES = (RULE,)


def translate(constructor: Constructor) -> Translation | None:
    """What becomes of `sync_module_states`."""
    value = constructor.value("sync_module_states")
    if value is None:
        return None
    sync = constructor.constant("sync_module_states", False)
    if sync is False and is_pure(constructor.context, value):
        message = "False: nothing is broadcast, as by default"
        return Translation(RULE, message, Plain(), in_runtime=False)
    if sync is not True or not _is_whole(constructor):
        message = "shard_model broadcasts parameters and buffers from rank 0 before it shards"
        return Translation(RULE, message)
    name, needs = constructor.context.name(
        RUNTIME, "broadcast_module_states", constructor.call.func
    )
    device = constructor.value("device_id")
    arguments = (
        ""
        if device is None or constructor.is_none("device_id")
        else f", device={enclosed(constructor.context.source(device))}"
    )
    return Translation(
        RULE,
        "parameters and buffers are broadcast from rank 0 before the model is sharded",
        Plain(prepare=(name, arguments), needs=needs),
    )


def _is_whole(constructor: Constructor) -> bool:
    """Whether every rank is seen to have the whole model, unsharded, and to be asked for it."""
    return (
        constructor.is_none("param_init_fn")
        and constructor.is_none("process_group")
        and constructor.is_none("device_mesh")
        and not constructor.on_meta_anywhere
        and not constructor.may_be_nested
    )
