"""Small FSDP1 programs as users write them. Each is run as it is, and with its imports swapped; both train by the same loop.

Not here: HYBRID_SHARD on a mesh of shape (n, 1), where FSDP1 never reduces over the replicas (pytorch#154888), and devices
by number, which need a GPU. Nor a unit that is used twice in one forward: FSDP2 gathers it once more in backward.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        fsdp1: a part of the source and what FSDP1 is run with instead, where the CPU does not do for FSDP1.
    """

    source: str
    case: Case
    fsdp1: tuple[str, str] = ("", "")

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
    fsdp1: tuple[str, str] = ("", ""),
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
    return Program(source, case, fsdp1)


_CLASSES = "auto_wrap_policy=ModuleWrapPolicy({Block})"
_BF16 = "param_dtype=torch.bfloat16"
_BF16_FP32 = f"{_BF16}, reduce_dtype=torch.float32"
_BOTH = {"ranks": (2, 4)}
_HYBRID = {"ranks": (4, 2)}  # two ranks have one replica only
_GROUPS = """\
shard_group, _ = dist.new_subgroups(2)
pairs = [dist.new_group(list(range(start, dist.get_world_size(), 2))) for start in range(2)]
replicate_group = pairs[dist.get_rank() % 2]
model = MODEL()
model = FSDP(model, ARGUMENTS)"""
_META = """\
with torch.device("meta"):
    model = MODEL()
model = FSDP(model, ARGUMENTS)"""
_RANK_0 = """\
if dist.get_rank() == 0:
    model = MODEL()
else:
    with torch.device("meta"):
        model = MODEL()
model = FSDP(model, ARGUMENTS)"""
_INITIALIZE = """\
def initialize(module):
    module.to_empty(device="cpu", recurse=False)
    with torch.no_grad():
        for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            tensor.uniform_(-0.3, 0.3)
"""
_STRATEGIES = """\
STRATEGIES = {
    "zero3": ShardingStrategy.FULL_SHARD,
    "zero2": ShardingStrategy.SHARD_GRAD_OP,
    "ddp": ShardingStrategy.NO_SHARD,
}
"""


def _mesh(names: bool) -> str:
    named = ', mesh_dim_names=("replicate", "shard")' if names else ""
    return f'init_device_mesh("cpu", (dist.get_world_size() // 2, 2){named})'


def _strategy(name: str, more: str = _CLASSES) -> str:
    return f"sharding_strategy=ShardingStrategy.{name}, {more}"


def _plain() -> Iterator[Program]:
    yield program("default", **_BOTH)
    # strategies and meshes
    yield program("full-shard", _strategy("FULL_SHARD"), **_BOTH)
    yield program("shard-grad-op", _strategy("SHARD_GRAD_OP"), **_BOTH)
    yield program("strategy-none", f"sharding_strategy=None, {_CLASSES}")
    yield program(
        "positional", "None, ShardingStrategy.SHARD_GRAD_OP, None, ModuleWrapPolicy({Block})"
    )
    for name, label in [("HYBRID_SHARD", "hybrid"), ("_HYBRID_SHARD_ZERO2", "hybrid-zero2")]:
        mesh = f"{_CLASSES}, device_mesh={_mesh(names=True)}"
        yield program(label, _strategy(name, mesh), **_HYBRID)
    yield program("one-replica", _strategy("HYBRID_SHARD", mesh))
    whole = 'device_mesh=init_device_mesh("cpu", (dist.get_world_size(),))'
    yield program("mesh", f"{_CLASSES}, {whole}", **_BOTH)
    yield program(
        "mesh-of-a-mesh",
        _strategy("SHARD_GRAD_OP", f'{_CLASSES}, device_mesh=mesh["dp"]'),
        body='mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))\n'
        "model = MODEL()\nmodel = FSDP(model, ARGUMENTS)",
        ranks=(4,),
    )
    yield program("world-group", f"process_group=dist.group.WORLD, {_CLASSES}")
    # policies
    yield program("policy-none", "auto_wrap_policy=None")
    yield program("policy-nested", "auto_wrap_policy=ModuleWrapPolicy({Block, Attention})")
    yield program(
        "policy-transformer",
        "auto_wrap_policy=partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})",
    )
    yield program(
        "policy-lambda",
        "auto_wrap_policy=partial(\n"
        "lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, (nn.Linear, Block)))",
    )
    yield program(
        "policy-bound-to-a-name",
        "auto_wrap_policy=policy",
        body="policy = ModuleWrapPolicy({Block})\nmodel = MODEL()\nmodel = FSDP(model, ARGUMENTS)",
    )
    yield program("tied", _CLASSES, model=models.Tied, **_BOTH)
    yield program(
        "frozen",
        f"{_CLASSES}, use_orig_params=True",
        body="model = MODEL()\nmodel.embed.weight.requires_grad_(False)\nmodel = FSDP(model, ARGUMENTS)",
    )
    yield program(
        "by-hand",
        body="model = MODEL()\nfor index, block in enumerate(model.blocks):\n"
        "    model.blocks[index] = FSDP(block)\nmodel = FSDP(model)",
    )
    # mixed precision
    for label, fields in {
        "bf16": _BF16,
        "bf16-fp32": _BF16_FP32,
        "fp16": "param_dtype=torch.float16, reduce_dtype=torch.float16",
        "reduce-only": "reduce_dtype=torch.bfloat16",
        "nothing": "",
        "keep-false": f"{_BF16_FP32}, keep_low_precision_grads=False",
        "cast-both": f"{_BF16_FP32}, cast_forward_inputs=True",
        "cast-children": f"{_BF16_FP32}, cast_forward_inputs=True, cast_root_forward_inputs=False",
        "positional": "torch.bfloat16, torch.float32",
    }.items():
        yield program(f"mixed-{label}", f"mixed_precision=MixedPrecision({fields}), {_CLASSES}")
        yield program(f"mixed-{label}-one-unit", f"mixed_precision=MixedPrecision({fields})")
    yield program(
        "mixed-bound-to-a-name",
        f"mixed_precision=precision, {_CLASSES}",
        body=f"precision = MixedPrecision({_BF16_FP32})\nmodel = MODEL()\nmodel = FSDP(model, ARGUMENTS)",
        **_BOTH,
    )
    yield program(
        "mixed-buffer-dtype-without-buffers",
        f"mixed_precision=MixedPrecision({_BF16_FP32}, buffer_dtype=torch.bfloat16),\n"
        "auto_wrap_policy=ModuleWrapPolicy({nn.Sequential})",
        model=models.Stack,
    )
    # what changes no number
    yield program(
        "neutral-none",
        f"{_CLASSES}, process_group=None, cpu_offload=None, mixed_precision=None, ignored_modules=None,\n"
        "param_init_fn=None, device_id=None, ignored_states=None, device_mesh=None",
    )
    yield program(
        "neutral-false",
        f"{_CLASSES}, cpu_offload=CPUOffload(offload_params=False), sync_module_states=False,\n"
        "forward_prefetch=False, limit_all_gathers=False, use_orig_params=False,\n"
        "backward_prefetch=BackwardPrefetch.BACKWARD_POST",
    )
    yield program(
        "neutral-true",
        f"{_CLASSES}, cpu_offload=CPUOffload(), limit_all_gathers=True, use_orig_params=True,\n"
        "backward_prefetch=BackwardPrefetch.BACKWARD_PRE, device_id=torch.cuda.current_device()",
    )
    # Offloading changes no number. FSDP1's own goes wrong without a device to copy from.
    yield program(
        "offload",
        f"{_CLASSES}, cpu_offload=CPUOffload(offload_params=True)",
        fsdp1=("CPUOffload(offload_params=True)", "None"),
    )
    # the training loop
    for label, name in [("full-shard", "FULL_SHARD"), ("shard-grad-op", "SHARD_GRAD_OP")]:
        yield program(f"no-sync-{label}", _strategy(name), micro_batches=3, **_BOTH)
    yield program(
        "no-sync-bf16", f"mixed_precision=MixedPrecision({_BF16}), {_CLASSES}", micro_batches=3
    )
    for label, kind in [("l2", 2.0), ("inf", float("inf"))]:
        clip = {"clip": 0.05, "norm_type": kind, "bitwise": False}
        yield program(f"clip-{label}", _CLASSES, **clip, **_BOTH)
    mesh = f"{_CLASSES}, device_mesh={_mesh(names=True)}"
    yield program(
        "no-sync-and-clip-hybrid",
        _strategy("_HYBRID_SHARD_ZERO2", mesh),
        micro_batches=3,
        clip=0.05,
        bitwise=False,
        **_HYBRID,
    )


def _runtime() -> Iterator[Program]:
    # strategies, groups and meshes
    for label in ("zero3", "zero2", "ddp"):
        yield program(
            f"strategy-from-a-dict-{label}",
            f"sharding_strategy=STRATEGIES[KIND], {_CLASSES}",
            top=f'{_STRATEGIES}\n\nKIND = "{label}"\n',
            **_BOTH,
        )
    yield program("no-shard", _strategy("NO_SHARD"), **_BOTH)
    yield program("no-sync-no-shard", _strategy("NO_SHARD"), micro_batches=3)
    yield program("clip-no-shard", _strategy("NO_SHARD"), clip=0.05, bitwise=False, **_BOTH)
    for name, label in [("HYBRID_SHARD", "hybrid"), ("_HYBRID_SHARD_ZERO2", "hybrid-zero2")]:
        mesh = f"{_CLASSES}, device_mesh={_mesh(names=False)}"
        yield program(f"{label}-unnamed-mesh", _strategy(name, mesh), **_HYBRID)
        groups = f"{_CLASSES}, process_group=(shard_group, replicate_group)"
        yield program(f"{label}-groups", _strategy(name, groups), body=_GROUPS, **_HYBRID)
    yield program("group", f"process_group=dist.new_group(), {_CLASSES}")
    yield program("half-group", f"process_group=dist.new_subgroups(2)[0], {_CLASSES}", ranks=(4,))
    yield program(
        "options-from-a-dict",
        "**options",
        body="options = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,\n"
        f"    mixed_precision=MixedPrecision({_BF16_FP32}), {_CLASSES})\n"
        "model = MODEL()\nmodel = FSDP(model, ARGUMENTS)",
    )
    # policies
    returned = "def choose():\n    return POLICY\n"
    for label, policy in {
        "module-wrap": "ModuleWrapPolicy([Block, Attention])",
        "transformer": "partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})",
        "size-based": "partial(size_based_auto_wrap_policy, min_num_params=1000)",
        "lambda": "partial(lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, nn.Linear))",
        "custom": "CustomPolicy(lambda m: isinstance(m, (Block, nn.LayerNorm)))",
        "custom-dict": "CustomPolicy(lambda m: isinstance(m, Block) and\n"
        "        {'sharding_strategy': ShardingStrategy.SHARD_GRAD_OP})",
        "or": "partial(_or_policy, policies=[\n"
        "        partial(lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, nn.Linear)),\n"
        "        partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})])",
        "always": "always_wrap_policy",
    }.items():
        yield program(
            f"policy-returned-{label}",
            "auto_wrap_policy=choose()",
            top=returned.replace("POLICY", policy),
        )
    yield program("policy-size-based", "auto_wrap_policy=size_based_auto_wrap_policy")
    # mixed precision
    for label, fields in {
        "buffers": f"{_BF16_FP32}, buffer_dtype=torch.bfloat16",
        "buffers-only": "buffer_dtype=torch.float64",
    }.items():
        precision = f"mixed_precision=MixedPrecision({fields})"
        yield program(f"mixed-{label}", f"{precision}, {_CLASSES}")
        yield program(f"mixed-{label}-one-unit", precision)
    size = "auto_wrap_policy=partial(size_based_auto_wrap_policy, min_num_params=300)"
    for label, fields in {
        "bf16": _BF16,
        "bf16-fp32": _BF16_FP32,
        "buffers": f"{_BF16_FP32}, buffer_dtype=torch.bfloat16",
    }.items():
        yield program(
            f"batch-norm-{label}",
            f"mixed_precision=MixedPrecision({fields}), {size}",
            model=models.ConvNet,
        )
    yield program(
        "batch-norm-ignored-by-nobody",
        f"mixed_precision=MixedPrecision({_BF16_FP32}, _module_classes_to_ignore=(nn.LayerNorm,)),\n{_CLASSES}",
    )
    yield program(
        "mixed-chosen",
        f"mixed_precision=precision, {_CLASSES}",
        body=f"precision = MixedPrecision({_BF16_FP32}) if dist.is_initialized() else None\n"
        "model = MODEL()\nmodel = FSDP(model, ARGUMENTS)",
    )
    # ignored
    yield program("ignored-modules", f"ignored_modules=[model.blocks[0].mlp], {_CLASSES}", **_BOTH)
    yield program(
        "ignored-states",
        f"ignored_states=[model.head.weight], {_CLASSES}, use_orig_params=True",
    )
    # initialization
    for label, more in {
        "": {},
        "-no-shard": {"ranks": (2,)},
        "-batch-norm": {"model": models.ConvNet},
    }.items():
        strategy = "sharding_strategy=ShardingStrategy.NO_SHARD, " * (label == "-no-shard")
        policy = size if label == "-batch-norm" else _CLASSES
        arguments = f"{strategy}sync_module_states=True, {policy}"
        yield program(f"sync{label}", arguments, rank_seeds=True, **{**_BOTH, **more})
    yield program(
        "sync-hybrid",
        _strategy(
            "HYBRID_SHARD", f"{_CLASSES}, device_mesh={_mesh(names=True)}, sync_module_states=True"
        ),
        rank_seeds=True,
        **_HYBRID,
    )
    yield program(
        "meta-param-init-fn",
        f"param_init_fn=initialize, {_CLASSES}",
        top=_INITIALIZE,
        body=_META,
        **_BOTH,
    )
    yield program(
        "meta-reset-parameters",
        "auto_wrap_policy=ModuleWrapPolicy({nn.Sequential})",
        body=_META,
        model=models.Stack,
    )
    yield program(
        "meta-but-rank-0",
        "sync_module_states=True,\n"
        'param_init_fn=lambda m: m.to_empty(device=torch.device("cpu"), recurse=False),\n'
        f"{_CLASSES}",
        body=_RANK_0,
        rank_seeds=True,
        **_BOTH,
    )
    # prefetching, the device, and places
    yield program("forward-prefetch", f"forward_prefetch=True, {_CLASSES}")
    yield program("backward-prefetch-none", f"backward_prefetch=None, {_CLASSES}")
    yield program("device", f'device_id=torch.device("cpu"), {_CLASSES}')
    yield program(
        "inside-an-expression",
        _CLASSES,
        body="models = [FSDP(MODEL(), ARGUMENTS)]\nmodel = models[0]",
    )


PROGRAMS = [*_plain(), *_runtime()]
