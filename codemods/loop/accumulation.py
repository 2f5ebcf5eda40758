"""What accumulation under `no_sync` costs and gives with FSDP2: gathered parameters, and the type of the sum."""

from __future__ import annotations

import re

from fsdp_migrate.codemods.arguments.mixed_precision import dtypes
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Example, Rule
from fsdp_migrate.index.models import Site

KEPT_GATHERED = Rule(
    "FSDP312",
    "no-sync-shard-grad-op",
    "no_sync(model) keeps the parameters of SHARD_GRAD_OP gathered as FSDP1 did",
    """With SHARD_GRAD_OP, FSDP1 frees parameters after a backward only if it reduced the gradients (`_runtime_utils.py`,
`_should_free_in_backward`): the next micro-batch gathers nothing. FSDP2 frees them after every backward unless
`set_reshard_after_backward(False)` says otherwise, at an all-gather a unit and micro-batch. `no_sync(model)` switches that
off and on again together with the synchronisation, for the units that stay gathered after forward.""",
    (
        Example(
            "accumulation",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

model = FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
with model.no_sync():
    loss.backward()
""",
            """\
from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import fully_shard

fully_shard(model, reshard_after_forward=False)
with no_sync(model):
    loss.backward()
""",
        ),
    ),
)
REDUCED_APART = Rule(
    "FSDP313",
    "no-sync-reduce-dtype",
    "FSDP2 accumulates in reduce_dtype where FSDP1 accumulated in param_dtype",
    """Under `no_sync` FSDP1 adds up gradients in the type in which backward makes them: `param_dtype`, or the parameters' own.
FSDP2 adds them up in `reduce_dtype` (`_fully_shard/_fsdp_param.py`, `to_accumulated_grad_if_needed`). With a higher
`reduce_dtype`, such as float32 over bfloat16, the sum is more precise and takes more memory; with a lower one it is less
precise. The training is not the same bit by bit in either case; without `no_sync`, or with one type for both, it is.""",
    (
        Example(
            "reduced in a higher precision",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

model = FSDP(model, mixed_precision=MixedPrecision(torch.bfloat16, torch.float32))
with model.no_sync():
    loss.backward()
""",
            """\
import torch
from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

fully_shard(
    model,
    mp_policy=MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    ),
)
with no_sync(model):
    loss.backward()
""",
            message="more precise",
        ),
        Example(
            "reduced in a lower precision",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

model = FSDP(model, mixed_precision=MixedPrecision(reduce_dtype=torch.bfloat16))
with model.no_sync():
    loss.backward()
""",
            """\
import torch
from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
with no_sync(model):
    loss.backward()
""",
            message="less precise",
        ),
        Example(
            "one type for both",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

model = FSDP(model, mixed_precision=MixedPrecision(torch.bfloat16, torch.bfloat16))
with model.no_sync():
    loss.backward()
""",
            """\
import torch
from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

fully_shard(
    model,
    mp_policy=MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16
    ),
)
with no_sync(model):
    loss.backward()
""",
            quiet=True,
        ),
    ),
)
_STAY_GATHERED = frozenset({"SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"})
_WIDTHS = {"float64": 8, "double": 8, "float32": 4, "float": 4}  # bytes; 2 for all others


def difference(context: Context, sites: frozenset[Site]) -> tuple[Rule, str] | None:
    """How some models accumulate otherwise than before, as far as their constructors show it: the rule, and what to add."""
    found = [plan.constructor for plan in context.plans_of(sites)]
    for constructor in found:
        own, reduced = dtypes(constructor)
        if reduced is not None and reduced != own:
            sides = _names(own, reduced)
            wider = _width(reduced) - _width(own or "float32")
            compared = "more precise" if wider > 0 else "less precise" if wider else "different"
            if sides is None:
                sides, compared = ("reduce_dtype", "param_dtype"), "the sums may differ"
            message = f"FSDP2 accumulates in {sides[0]}, FSDP1 did in {sides[1]}: {compared}"
            return REDUCED_APART, f"; {message}"
    for constructor in found:
        strategy = constructor.value("sharding_strategy")
        if strategy and constructor.member(strategy, "ShardingStrategy") in _STAY_GATHERED:
            return KEPT_GATHERED, ", and leaves parameters gathered in between"
    return None


def _names(own: str | None, reduced: str) -> tuple[str, str] | None:
    """The types in which FSDP2 and FSDP1 accumulate; None where a name does not say which type it is."""
    types = [reduced] if own is None else [reduced, own]
    if not all(re.fullmatch(r"(torch\.)?(b?float(16|32|64)?|half|double)", name) for name in types):
        return None
    return reduced, own or "the parameters' own type"


def _width(dtype: str) -> int:
    return _WIDTHS.get(dtype.rpartition(".")[2], 2)
