"""`FSDP.summon_full_params(model)`: whole parameters for a while.

On an FSDP2 model FSDP1's context is empty: parameters stay sharded, without an error. `unshard()` is no substitute: it does
not recurse, casts to `param_dtype` and forgets changes (pytorch#129229). The runtime's context of the same name gathers,
shows and writes back as FSDP1's did.
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP321",
    "summon-full-params",
    "summon_full_params comes from the runtime",
    """FSDP1's `summon_full_params` does nothing on an FSDP2 model, without an error. The runtime's takes the same arguments:
inside it parameters are whole and in their own dtype, changes are written back unless `writeback=False`, and what FSDP1
refused is refused. To read one parameter, `p.full_tensor()` on all ranks does as well; to generate text, nothing is needed
where `generate` calls the model. A forward inside does not see changes that were made inside.""",
    (
        Example(
            "reading parameters",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
with FSDP.summon_full_params(model, writeback=False):
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
""",
            """\
from fsdp_migrate.runtime import summon_full_params
from torch.distributed.fsdp import fully_shard

fully_shard(model)
with summon_full_params(model, writeback=False):
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
""",
        ),
        Example(
            "under a condition, and through the model",
            """\
from contextlib import nullcontext

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
context = FSDP.summon_full_params(model, recurse=False) if whole else nullcontext()
with model.summon_full_params(model), context:
    text = model.generate(prompt)
""",
            """\
from contextlib import nullcontext

from fsdp_migrate.runtime import summon_full_params
from torch.distributed.fsdp import fully_shard

fully_shard(model)
context = summon_full_params(model, recurse=False) if whole else nullcontext()
with summon_full_params(model), context:
    text = model.generate(prompt)
""",
        ),
        Example(
            "another library's",
            """\
from fairscale.nn import FullyShardedDataParallel as FSDP

with FSDP(model).summon_full_params():
    print(model.weight)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)


def find(context: Context) -> Iterator[Draft]:
    """`summon_full_params` of the class and of models."""
    for attribute in context.module.attributes:
        if attribute.attr != "summon_full_params":
            continue
        sites = context.concerned(attribute)
        if sites is None:
            continue
        reference = attribute.value if context.fsdp1(attribute.value) else None
        name, needs = context.name(RUNTIME, "summon_full_params", reference, use=attribute)
        yield Draft(
            RULE,
            attribute,
            Action.RUNTIME,
            "the runtime's shows whole parameters and writes changes back, as FSDP1's did",
            context.source(attribute),
            sites,
            edits=(context.rename(attribute, name),),
            needs=needs,
            gone=() if reference is None else (reference,),
        )


Command = command(find, __doc__ or "")
