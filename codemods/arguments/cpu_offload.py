"""`cpu_offload`: parameters, gradients and optimizer states on the CPU between uses.

`CPUOffload(offload_params=True)` is `CPUOffloadPolicy()` on every unit. `CPUOffload(offload_params=False)` and None offload
nothing. What follows from offloading (clipping without a CPU backend) is the business of the clipping codemod.
"""

from __future__ import annotations

import ast

from fsdp_migrate.codemods.constructor_call import Constructor
from fsdp_migrate.codemods.expressions import values_given
from fsdp_migrate.codemods.plan import Plain, Translation, spent_with
from fsdp_migrate.codemods.rule import Example, Rule
from fsdp_migrate.index.names import PACKAGE
from fsdp_migrate.index.values import Origin

RULE = Rule(
    "FSDP201",
    "cpu-offload",
    "CPUOffload(offload_params=True) is CPUOffloadPolicy()",
    """FSDP1 pinned the memory of offloaded shards, and so does `CPUOffloadPolicy()` by default. FSDP1's object must not be
left behind: `fully_shard` accepts it as `offload_policy` without an error and does not offload.""",
    (
        Example(
            "offloading",
            """\
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

model = FSDP(model, cpu_offload=CPUOffload(offload_params=True))
""",
            """\
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

fully_shard(model, offload_policy=CPUOffloadPolicy())
""",
        ),
        Example(
            "no offloading",
            """\
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

model = FSDP(model, cpu_offload=CPUOffload(offload_params=False))
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
        Example(
            "decided when the program runs",
            """\
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

model = FSDP(model, cpu_offload=CPUOffload(offload_params=args.offload))
""",
            """\
from fsdp_migrate.runtime import CPUOffload, shard_model

model = shard_model(model, cpu_offload=CPUOffload(offload_params=args.offload))
""",
        ),
        Example(
            "bound to a name, None, or the default",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, CPUOffload

offload = CPUOffload(offload_params=True)
encoder = FSDP(encoder, cpu_offload=offload)
decoder = FSDP(decoder, cpu_offload=CPUOffload())
head = FSDP(head, cpu_offload=None)
""",
            """\
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

fully_shard(encoder, offload_policy=CPUOffloadPolicy())
fully_shard(decoder)
fully_shard(head)
""",
        ),
        Example(
            "an object with another use",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, CPUOffload

offload = CPUOffload(offload_params=True)
model = FSDP(model, cpu_offload=offload)
print(offload)
""",
            """\
from fsdp_migrate.runtime import shard_model, CPUOffload

offload = CPUOffload(offload_params=True)
model = shard_model(model, cpu_offload=offload)
print(offload)
""",
        ),
    ),
)
RULES = (RULE,)


def translate(constructor: Constructor) -> Translation | None:
    """What becomes of `cpu_offload`."""
    value = constructor.value("cpu_offload")
    if value is None:
        return None
    if constructor.is_none("cpu_offload"):
        return Translation(
            RULE, "None offloads nothing, as does FSDP2's default", Plain(), in_runtime=False
        )
    made = constructor.origin(value)
    offload = offloads(constructor, made)
    if made is None or offload is None:
        return Translation(RULE, "whether to offload is known only when the program runs")
    spent, gone = spent_with(constructor, made)
    if not offload:
        message = "nothing is offloaded, which is FSDP2's default"
        return Translation(RULE, message, Plain(spent=spent, gone=gone))
    name, needs = constructor.context.name(PACKAGE, "CPUOffloadPolicy", constructor.call.func)
    return Translation(
        RULE,
        "CPUOffload(offload_params=True) is CPUOffloadPolicy() in every unit",
        Plain(shared={"offload_policy": f"{name}()"}, needs=needs, spent=spent, gone=gone),
    )


def offloads(constructor: Constructor, made: Origin | None) -> bool | None:
    """Whether a `CPUOffload(...)` in sight, which nothing else can change, offloads; None if that cannot be seen."""
    if made is None or not isinstance(made.node, ast.Call):
        return None
    context, call = constructor.context, made.node
    if context.project.fsdp1(call.func, made.module) != "CPUOffload":
        return None
    if made.names and not (made.module is context.module and context.is_only_use(made.names[0])):
        return None
    given = values_given(call)
    if not given:
        return False
    return bool(given[0].value) if isinstance(given[0], ast.Constant) else None
