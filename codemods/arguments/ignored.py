"""`ignored_modules` and `ignored_states`: what is left unsharded."""

from __future__ import annotations

from fsdp_migrate.codemods.constructor_call import Constructor
from fsdp_migrate.codemods.plan import Plain, Translation
from fsdp_migrate.codemods.rule import Example, Rule

RULE = Rule(
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
        Example(
            "parameters, under the older name",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, ignored_parameters=[model.scale, model.shift])
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, ignored_states=[model.scale, model.shift])
""",
        ),
        Example(
            "None",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, ignored_modules=None, ignored_states=None)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
        Example(
            "a value that can be None",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

ignored = [model.head] if freeze else None
model = FSDP(model, ignored_states=ignored)
""",
            """\
from fsdp_migrate.runtime import shard_model

ignored = [model.head] if freeze else None
model = shard_model(model, ignored_states=ignored)
""",
        ),
    ),
)
RULES = (RULE,)


def translate(constructor: Constructor, name: str) -> Translation | None:
    """What becomes of `ignored_modules` and `ignored_states`."""
    if constructor.value(name) is None:
        return None
    if constructor.is_none(name):
        return Translation(RULE, "None: nothing is ignored", Plain(), in_runtime=False)
    return Translation(RULE, "shard_model hands these parameters to every unit as ignored_params")
