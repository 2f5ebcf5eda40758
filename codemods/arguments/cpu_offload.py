"""`cpu_offload`: parameters, gradients and optimizer states on the CPU between uses.

`CPUOffload(offload_params=True)` is `CPUOffloadPolicy()` on every unit. `CPUOffload(offload_params=False)` and None offload
nothing. What follows from offloading (clipping without a CPU backend) is the business of the clipping codemod.
"""

from __future__ import annotations

import ast

from fsdp_migrate.codemods.plan import Constructor, Plain, Translation
from fsdp_migrate.codemods.rule import Example, Rule
from fsdp_migrate.index.names import PACKAGE

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
    offload = offloads(constructor, value)
    if offload is None:
        return Translation(RULE, "whether to offload is known only when the program runs")
    if not offload:
        return Translation(
            RULE, "nothing is offloaded, which is FSDP2's default", Plain(gone=(value,))
        )
    name, needs = constructor.context.name(PACKAGE, "CPUOffloadPolicy", constructor.call.func)
    return Translation(
        RULE,
        "CPUOffload(offload_params=True) is CPUOffloadPolicy() in every unit",
        Plain(shared={"offload_policy": f"{name}()"}, needs=needs, gone=(value,)),
    )


def offloads(constructor: Constructor, value: ast.expr) -> bool | None:
    """Whether a `CPUOffload(...)` written in place offloads; None if that cannot be seen."""
    if not isinstance(value, ast.Call) or constructor.context.fsdp1(value.func) != "CPUOffload":
        return None
    given = [*value.args, *(keyword.value for keyword in value.keywords)]
    if not given:
        return False
    return bool(given[0].value) if isinstance(given[0], ast.Constant) else None
