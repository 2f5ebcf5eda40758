"""The rules of the arguments that change how a step runs, or how it starts."""

from __future__ import annotations

from fsdp_migrate.codemods.rule import Example, Rule, bridged

CPU_OFFLOAD = Rule(
    "FSDP201",
    "cpu-offload",
    "CPUOffload(offload_params=True) becomes CPUOffloadPolicy()",
    """FSDP1 pinned the memory of offloaded shards, and so does `CPUOffloadPolicy()` by default. FSDP1's object must not be
left behind: `fully_shard` accepts it as `offload_policy` without an error and does not offload.""",
    (
        Example(
            "offloading",
            """\
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), cpu_offload=CPUOffload(offload_params=True))
""",
            """\
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

from model import Net

model = fully_shard(Net(), offload_policy=CPUOffloadPolicy())
""",
        ),
        Example(
            "decided when the program runs",
            """\
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), cpu_offload=CPUOffload(offload_params=True) if args.offload else None)
""",
            """\
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

from model import Net

model = fully_shard(
    Net(), offload_policy=CPUOffloadPolicy() if args.offload else OffloadPolicy()
)
""",
        ),
    ),
)
BACKWARD_PREFETCH = Rule(
    "FSDP203",
    "backward-prefetch",
    "FSDP2 prefetches in backward as BACKWARD_PRE does",
    """FSDP2 gathers the next unit before the gradients of the current one are computed, which is BACKWARD_PRE. BACKWARD_POST
and None give the same numbers with one unit less in memory. FSDP2 has no BACKWARD_POST; None is
`set_modules_to_backward_prefetch` of a unit to itself, which the runtime does.""",
    (
        Example(
            "after the gradients",
            """\
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), backward_prefetch=BackwardPrefetch.BACKWARD_POST)
""",
            """\
from torch.distributed.fsdp import fully_shard

from model import Net

model = fully_shard(Net())
""",
            message="one unit earlier",
        ),
        bridged(
            "no prefetch",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), backward_prefetch=None)
""",
            message="switches prefetching off",
        ),
    ),
)
FORWARD_PREFETCH = Rule(
    "FSDP204",
    "forward-prefetch",
    "forward_prefetch=True becomes a list of units to gather ahead",
    """FSDP1 learned the order of the units in the first forward and then gathered one unit ahead. FSDP2 takes the order as
lists (`set_modules_to_forward_prefetch`); the runtime records it in the first forward. It changes speed only, never a
number.""",
    (
        bridged(
            "on",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), forward_prefetch=True)
""",
            message="records the order",
        ),
    ),
)
LIMIT = Rule(
    "FSDP205",
    "limit-all-gathers",
    "FSDP2 bounds the memory of all-gathers by itself",
    """FSDP1's rate limiter blocked the CPU so that not too many all-gathers were in flight. FSDP2 frees memory in stream
order and needs no limiter: the argument has no effect, whatever its value.""",
    (
        Example(
            "any value",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), limit_all_gathers=config.limit_all_gathers)
""",
            """\
from torch.distributed.fsdp import fully_shard

from model import Net

model = fully_shard(Net())
""",
            message="no effect",
        ),
    ),
)
USE_ORIG_PARAMS = Rule(
    "FSDP206",
    "use-orig-params",
    "FSDP2 always keeps the original parameters",
    """There is no flat parameter any more: every parameter keeps its name and shape. Programs that used FSDP1's default,
False, had one flat tensor a unit in the optimizer; elementwise optimizers (SGD, Adam, AdamW) give the same numbers. A
parameter that no forward used had a gradient of zeros in a flat parameter, so weight decay and momentum still acted on it: the
bridge keeps that, plain FSDP2 gives such a parameter no gradient.""",
    (
        Example(
            "any value",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), use_orig_params=True)
""",
            """\
from torch.distributed.fsdp import fully_shard

from model import Net

model = fully_shard(Net())
""",
            message="always keeps",
        ),
    ),
)
DEVICE_ID = Rule(
    "FSDP207",
    "device-id",
    "the device is the current device of the mesh's type",
    """FSDP1 moved the model to `device_id`. `fully_shard` moves what it shards to the current device of the mesh, so the
argument goes where the program sets the current device (`torch.cuda.set_device`) or passes the current one. A device that the
program does not make current is made current in front of the call. A device that may be the CPU stays on the bridge.""",
    (
        Example(
            "a rank that nothing made current",
            """\
import os

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

local_rank = int(os.environ["LOCAL_RANK"])
print(torch.__version__)
model = Net()
model = FSDP(model, device_id=local_rank)
""",
            """\
import os

import torch
from torch.distributed.fsdp import fully_shard

from model import Net

local_rank = int(os.environ["LOCAL_RANK"])
print(torch.__version__)
model = Net()
torch.cuda.set_device(local_rank)
fully_shard(model)
""",
        ),
        bridged(
            "the CPU, where a machine may have a GPU",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), device_id=torch.device("cpu"))
""",
            message="the current one",
        ),
    ),
)
SYNC = Rule(
    "FSDP208",
    "sync-module-states",
    "sync_module_states=True becomes a broadcast before sharding",
    """Ranks that start from different weights train a model whose shards come from different initializations, and nothing
says so. FSDP1's `sync_module_states=True` broadcast parameters and buffers from rank 0 (`_init_utils.py`,
`_sync_module_params_and_buffers`); FSDP2 has nothing like it. The runtime's `broadcast_module_states` does it in front of the
first `fully_shard`, for buffers that are in no state dict as well.""",
    (
        Example(
            "a broadcast",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = Net()
model = FSDP(model, sync_module_states=True)
""",
            """\
from fsdp_migrate.runtime import broadcast_module_states
from torch.distributed.fsdp import fully_shard

from model import Net

model = Net()
broadcast_module_states(model)
fully_shard(model)
""",
        ),
        Example(
            "known only when the program runs",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), sync_module_states=config.low_memory)
""",
            """\
from fsdp_migrate.runtime import broadcast_module_states
from torch.distributed.fsdp import fully_shard

from model import Net

model = Net()
if config.low_memory:
    broadcast_module_states(model)
fully_shard(model)
""",
            message="are broadcast",
        ),
    ),
)
INIT_FUNCTION = Rule(
    "FSDP210",
    "param-init-fn",
    "param_init_fn runs on each unit before it is sharded",
    """FSDP1 materializes the modules of one unit, initializes them, shards the unit, and goes on to the next, so that one
unit at a time is whole. Initializing after sharding, as guides have it, draws other random numbers, and on the CPU the same
ones for every shard. The runtime keeps FSDP1's order, and the values are FSDP1's bit for bit. A model that may be on the meta
device stays with the runtime also without this argument, unless a recorded run (`--values`) shows that no unit is inside
another: then `materialize(module, param_init_fn)` is in front of each `fully_shard`, in the order of `model.modules()`.""",
    (
        bridged(
            "a function",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), param_init_fn=init)
""",
            message="initializes each unit",
        ),
    ),
)
IGNORED = Rule(
    "FSDP212",
    "ignored-modules",
    "ignored modules and parameters are ignored by every unit",
    """`fully_shard` takes parameters to ignore, on every call whose modules hold one, where FSDP1 took modules once. The
runtime finds the parameters and hands them to every unit, and leaves ignored modules out of the wrapping. By a recorded run
(`--values`), modules that neither train nor have buffers become `ignored_params=` of each `fully_shard`.""",
    (
        bridged(
            "a value of a configuration",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), ignored_modules=config.frozen)
""",
            message="whole in every unit",
        ),
    ),
)
