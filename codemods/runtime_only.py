"""Arguments that need help when the program runs: `ignored_*`, `param_init_fn`, `sync_module_states`, `forward_prefetch`.

`fully_shard` has no counterpart of these, or one that would give other numbers; `shard_model` does what FSDP1 did.
"""

from __future__ import annotations

from fsdp_migrate.codemods.plan import Constructor, Plain, Translation
from fsdp_migrate.codemods.rule import Example, Rule
from fsdp_migrate.codemods.without_effect import is_pure

FORWARD_PREFETCH = Rule(
    "FSDP204",
    "forward-prefetch",
    "forward_prefetch=True is a list of units to gather ahead",
    """FSDP1 learned the order of the units in the first forward and then gathered one unit ahead. FSDP2 takes the order as
lists (`set_modules_to_forward_prefetch`); the runtime records it in the first forward. It changes speed only, never a
number.""",
    (
        Example(
            "off, the default",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, forward_prefetch=False)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
        Example(
            "on",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, forward_prefetch=True)
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, forward_prefetch=True)
""",
        ),
    ),
)
SYNC_MODULE_STATES = Rule(
    "FSDP208",
    "sync-module-states",
    "sync_module_states=True is a broadcast before sharding",
    """Ranks that start from different weights train a model whose shards come from different initialisations, and nothing
says so. FSDP1's `sync_module_states=True` broadcast parameters and buffers from rank 0; FSDP2 has nothing like it, so the
runtime broadcasts before it shards, buffers that are in no state dict among them.""",
    (
        Example(
            "a broadcast",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, sync_module_states=True)
""",
            """\
from fsdp_migrate.runtime import shard_model

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
PARAM_INIT_FN = Rule(
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
    ),
)
META_INIT = Rule(
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
    ),
)
IGNORED = Rule(
    "FSDP212",
    "ignored-modules",
    "ignored modules and parameters are ignored by every unit",
    """`fully_shard` takes parameters to ignore, on every call whose modules hold one, where FSDP1 took modules once. The
runtime finds the parameters and hands them to every unit, and leaves ignored modules out of the wrapping.""",
    (
        Example(
            "an ignored module",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, ignored_modules=[model.head])
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, ignored_modules=[model.head])
""",
        ),
    ),
)
RULES = (FORWARD_PREFETCH, SYNC_MODULE_STATES, PARAM_INIT_FN, META_INIT, IGNORED)


def translate_forward_prefetch(constructor: Constructor) -> Translation | None:
    """What becomes of `forward_prefetch`."""
    return _switch(
        constructor,
        "forward_prefetch",
        FORWARD_PREFETCH,
        off="False is FSDP2's way as well",
        on="shard_model records the order of the units and prefetches along it",
    )


def translate_sync_module_states(constructor: Constructor) -> Translation | None:
    """What becomes of `sync_module_states`."""
    return _switch(
        constructor,
        "sync_module_states",
        SYNC_MODULE_STATES,
        off="False: nothing is broadcast, as by default",
        on="shard_model broadcasts parameters and buffers from rank 0 before it shards",
    )


def translate_param_init_fn(constructor: Constructor) -> Translation | None:
    """What becomes of `param_init_fn`, and of models on the meta device without one."""
    if constructor.is_none("param_init_fn"):
        if constructor.on_meta:
            return Translation(
                META_INIT, "shard_model materialises a model on the meta device as FSDP1 does"
            )
        if constructor.value("param_init_fn") is None:
            return None
        return Translation(PARAM_INIT_FN, "None: nothing to initialise", Plain(), in_runtime=False)
    return Translation(
        PARAM_INIT_FN, "shard_model initialises each unit before it shards it, as FSDP1 does"
    )


def translate_ignored(constructor: Constructor, name: str) -> Translation | None:
    """What becomes of `ignored_modules` and `ignored_states`."""
    if constructor.value(name) is None:
        return None
    if constructor.is_none(name):
        return Translation(IGNORED, "None: nothing is ignored", Plain(), in_runtime=False)
    return Translation(
        IGNORED, "shard_model hands these parameters to every unit as ignored_params"
    )


def _switch(
    constructor: Constructor, name: str, rule: Rule, *, off: str, on: str
) -> Translation | None:
    value = constructor.value(name)
    if value is None:
        return None
    if constructor.constant(name, False) is False and is_pure(value):
        return Translation(rule, off, Plain(), in_runtime=False)
    return Translation(rule, on)
