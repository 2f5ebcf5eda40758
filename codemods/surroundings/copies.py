"""Copies of a sharded model: `copy.deepcopy(model)`, and the averages that are made of one."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import shortened, values_given
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.codemods.surroundings.parameters import Parameters
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP504",
    "copy-after-sharding",
    "a sharded model cannot be copied: copy it before, and shard the copy the same way",
    """`copy.deepcopy` of an FSDP2 model raises `AssertionError: FSDP does not support deepcopy`; torch's `AveragedModel`
and other averages that copy the model fail with it (torch 2.13; pytorch#82070, pytorch#149138). FSDP1 failed as well, with
`cannot pickle 'module' object` or, with flat parameters after a forward, because they are no leaves. What trains under
both: a copy that is made before, and sharded the same way. `average.lerp_(parameter, 0.1)` and `torch._foreach_lerp_` work
on the shards of both, to the last bit. A copy that is made before the constructor is no finding.""",
    (
        Example(
            "a copy",
            """\
import copy

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
ema = copy.deepcopy(model)
""",
            """\
import copy

from torch.distributed.fsdp import fully_shard

fully_shard(model)
# fsdp-migrate: FSDP504 by hand: fails: copy the model before it is sharded, and shard the copy the same way
ema = copy.deepcopy(model)
""",
            message="shard the copy the same way",
        ),
        Example(
            "an average",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.optim.swa_utils import AveragedModel

model = FSDP(model)
average = AveragedModel(model)
""",
            """\
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel

fully_shard(model)
# fsdp-migrate: FSDP504 by hand: fails: copy the model before it is sharded, and shard the copy the same way
average = AveragedModel(model)
""",
            message="shard the copy the same way",
        ),
        Example(
            "a copy that is made first",
            """\
from copy import deepcopy

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

ema = deepcopy(model)
model, ema = FSDP(model), FSDP(ema)
""",
            """\
from copy import deepcopy

from torch.distributed.fsdp import fully_shard

ema = deepcopy(model)
model, ema = fully_shard(model), fully_shard(ema)
""",
            quiet=True,
        ),
        Example(
            "a copy of something else",
            """\
import copy

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
options = copy.deepcopy(options)
""",
            """\
import copy

from torch.distributed.fsdp import fully_shard

fully_shard(model)
options = copy.deepcopy(options)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_COPYING = frozenset({"copy.deepcopy", "torch.optim.swa_utils.AveragedModel"})
_AVERAGES = frozenset({"ModelEma", "ModelEmaV2", "ModelEmaV3", "ExponentialMovingAverage"})


def find(context: Context, parameters: Parameters) -> Iterator[Draft]:
    """Calls that copy an FSDP1 model."""
    for call in context.module.calls:
        sites = frozenset(
            site for argument in values_given(call) for site in context.sites(argument)
        )
        if not sites:
            continue
        paths = context.project.dotted(call.func, context.module)
        if paths & _COPYING or any(p.rpartition(".")[2] in _AVERAGES for p in paths):
            message = "fails: copy the model before it is sharded, and shard the copy the same way"
            construct = shortened(context.source(call))
            yield Draft(RULE, call, Action.MANUAL, message, construct, sites, mark=True)
