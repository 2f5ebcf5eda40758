"""Small FSDP1 programs as users write them. Each is run as it is, and with its imports swapped; both train by the same loop.

What a swap of imports leaves is FSDP1's own code, which `cases.py` compares argument by argument; here is what those do not
have: arguments by position, arguments that change nothing, and what a program chooses when it runs.

Nowhere: HYBRID_SHARD on a mesh of shape (n, 1), where FSDP1 never reduces over the replicas (pytorch#154888), and devices
by number, which need a GPU. Nor a unit that is used twice in one forward: FSDP2 gathers it once more in backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import models
from .swapped import imports
from .train import Case


@dataclass(frozen=True)
class Program:
    """A program and its training.

    Attributes:
        source: a module with a function ``run(train)``, which wraps a model and trains it.
        case: the training; of the case's own model only the batches are used.
    """

    source: str
    case: Case

    @property
    def name(self) -> str:
        return self.case.name


_TEMPLATE = """\
{imports}
from equivalence.models import {models}

{top}
def run(train):
{body}
    return train(
        model,
        lambda: model.no_sync(),
        lambda limit, kind: model.clip_grad_norm_(limit, kind),
    )
"""


def program(
    name: str,
    arguments: str = "",
    *,
    top: str = "",
    body: str = "model = MODEL()\nmodel = FSDP(model, ARGUMENTS)",
    model: type[Any] = models.Transformer,
    **training: Any,
) -> Program:
    """A program whose function ``run`` has the statements of ``body``."""
    body = body.replace("MODEL", model.__name__).replace(
        ", ARGUMENTS", f", {arguments}" * bool(arguments)
    )
    code = f"{top}\n{body}"
    used = [cls for cls in ("Attention", "Block", model.__name__) if cls in code] or [
        model.__name__
    ]
    own = ("Block", "Attention", "model")
    lines = [line for line in imports(code) if not any(line.endswith(f" {n}") for n in own)]
    source = _TEMPLATE.format(
        imports="\n".join(lines),
        models=", ".join(used),
        top=f"{top}\n" if top else "",
        body="\n".join(f"    {line}" for line in body.splitlines()),
    )
    case = Case(f"program-{name}", model=model, **{"ranks": (2,), **training})
    return Program(source, case)


_CLASSES = "auto_wrap_policy=ModuleWrapPolicy({Block})"
_BF16_FP32 = "param_dtype=torch.bfloat16, reduce_dtype=torch.float32"
_BOTH = {"ranks": (2, 4)}
_STRATEGIES = """\
STRATEGIES = {
    "zero3": ShardingStrategy.FULL_SHARD,
    "zero2": ShardingStrategy.SHARD_GRAD_OP,
    "ddp": ShardingStrategy.NO_SHARD,
}


KIND = "zero2"
"""


def _hybrid(name: str) -> str:
    mesh = 'init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("replicate", "shard"))'
    return f"sharding_strategy=ShardingStrategy.{name}, {_CLASSES}, device_mesh={mesh}"


PROGRAMS = [
    program("positional", "None, ShardingStrategy.SHARD_GRAD_OP, None, ModuleWrapPolicy({Block})"),
    program(
        "mixed-positional",
        f"mixed_precision=MixedPrecision(torch.bfloat16, torch.float32), {_CLASSES}",
    ),
    # what changes no number
    program(
        "neutral-none",
        f"{_CLASSES}, process_group=None, cpu_offload=None, mixed_precision=None, ignored_modules=None,\n"
        "param_init_fn=None, device_id=None, ignored_states=None, device_mesh=None, sharding_strategy=None",
    ),
    program(
        "neutral-false",
        f"{_CLASSES}, cpu_offload=CPUOffload(offload_params=False), sync_module_states=False,\n"
        "forward_prefetch=False, limit_all_gathers=False, use_orig_params=False,\n"
        "backward_prefetch=BackwardPrefetch.BACKWARD_POST",
    ),
    program(
        "neutral-true",
        f"{_CLASSES}, cpu_offload=CPUOffload(), limit_all_gathers=True, use_orig_params=True,\n"
        "backward_prefetch=BackwardPrefetch.BACKWARD_PRE, device_id=torch.cuda.current_device()",
    ),
    program("device", f'device_id=torch.device("cpu"), {_CLASSES}'),
    program(
        "mixed-keep-false",
        f"mixed_precision=MixedPrecision({_BF16_FP32}, keep_low_precision_grads=False), {_CLASSES}",
    ),
    program(
        "mixed-ignored-by-nobody",
        f"mixed_precision=MixedPrecision({_BF16_FP32}, _module_classes_to_ignore=(nn.LayerNorm,)),\n{_CLASSES}",
    ),
    # what cases have in several units only, or on four ranks only
    program("mixed-bf16-fp32-one-unit", f"mixed_precision=MixedPrecision({_BF16_FP32})"),
    program("mixed-buffers-one-unit", "mixed_precision=MixedPrecision(buffer_dtype=torch.float64)"),
    program("one-replica", _hybrid("HYBRID_SHARD")),
    program(
        "no-sync-and-clip-hybrid",
        _hybrid("_HYBRID_SHARD_ZERO2"),
        micro_batches=3,
        clip=0.05,
        bitwise=False,
        ranks=(4, 2),
    ),
    # what a program chooses when it runs
    program(
        "policy-always",
        "auto_wrap_policy=choose()",
        top="def choose():\n    return always_wrap_policy\n",
    ),
    program(
        "options-from-a-dict",
        "**options",
        top=_STRATEGIES,
        body="options = dict(sharding_strategy=STRATEGIES[KIND],\n"
        f"    mixed_precision=MixedPrecision({_BF16_FP32}), {_CLASSES})\n"
        "model = MODEL()\nmodel = FSDP(model, ARGUMENTS)",
        **_BOTH,
    ),
    program(
        "mixed-chosen",
        f"mixed_precision=precision, {_CLASSES}",
        body=f"precision = MixedPrecision({_BF16_FP32}) if dist.is_initialized() else None\n"
        "model = MODEL()\nmodel = FSDP(model, ARGUMENTS)",
    ),
    program(
        "inside-an-expression",
        _CLASSES,
        body="models = [FSDP(MODEL(), ARGUMENTS)]\nmodel = models[0]",
    ),
]
