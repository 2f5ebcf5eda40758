"""What is compared. A case is one way to call FSDP1's constructor and the training that follows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from fsdp_migrate.runtime import FullyShardedDataParallel

from .models import Attention, Block, ConvNet, Stack
from .train import Case


def strategy(name: str, **more: Any) -> Any:
    def options(api: Any) -> dict[str, Any]:
        policy = api.ModuleWrapPolicy({Block})
        return {"sharding_strategy": api.ShardingStrategy[name], "auto_wrap_policy": policy, **more}

    return options


def hybrid(name: str, how: str) -> Any:
    """Two replicas of two shards, given in each way that FSDP1 takes."""

    def options(api: Any) -> dict[str, Any]:
        if how == "groups":
            shard, _ = dist.new_subgroups(2)
            pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
            more = {"process_group": (shard, pairs[dist.get_rank() % 2])}
        else:
            names = ("replicate", "shard") if how == "named-mesh" else None
            more = {"device_mesh": init_device_mesh("cpu", (2, 2), mesh_dim_names=names)}
        return strategy(name, **more)(api)

    return options


def halves(name: str, how: str) -> Any:
    """Ranks 0, 1 and ranks 2, 3 (at two ranks: 0 and 1) train apart."""

    def options(api: Any) -> dict[str, Any]:
        if how == "mesh":
            mesh = init_device_mesh(
                "cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("pp", "dp")
            )
            return strategy(name, device_mesh=mesh["dp"])(api)
        return strategy(name, process_group=dist.new_subgroups(2)[0])(api)

    return options


def policy(make: Any, **more: Any) -> Any:
    return lambda api: {"auto_wrap_policy": make(api), **more}


def custom_with_dict(api: Any) -> Any:
    def decide(module: nn.Module) -> bool | dict[str, Any]:
        if isinstance(module, Attention):
            return {
                "sharding_strategy": api.ShardingStrategy.SHARD_GRAD_OP,
                "forward_prefetch": True,
            }
        return isinstance(module, Block)

    return api.CustomPolicy(decide)


POLICIES = {
    "module-wrap": lambda api: api.ModuleWrapPolicy([Block, Attention]),
    "transformer": lambda api: partial(
        api.transformer_auto_wrap_policy, transformer_layer_cls={Block}
    ),
    "size-based": lambda api: partial(
        api.size_based_auto_wrap_policy, min_num_params=500, force_leaf_modules={Block}
    ),
    "custom-dict": custom_with_dict,
}


def mixed(**fields: Any) -> Any:
    wrapped = fields.pop("wrapped", True)

    def options(api: Any) -> dict[str, Any]:
        size = partial(api.size_based_auto_wrap_policy, min_num_params=300)
        return {
            "mixed_precision": api.MixedPrecision(**fields),
            "auto_wrap_policy": size if wrapped else None,
        }

    return options


BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
MIXED = {
    "bf16": {"param_dtype": BF16},
    "bf16-reduce-fp32": {"param_dtype": BF16, "reduce_dtype": FP32},
    "fp16": {"param_dtype": FP16, "reduce_dtype": FP16},
    "reduce-only": {"reduce_dtype": BF16},
    "buffers": {"param_dtype": BF16, "reduce_dtype": FP32, "buffer_dtype": BF16},
    "buffers-unwrapped": {"param_dtype": BF16, "buffer_dtype": BF16, "wrapped": False},
    "buffers-only": {"buffer_dtype": torch.float64},
    "cast-inputs": {"param_dtype": BF16, "reduce_dtype": FP32, "cast_forward_inputs": True},
    "cast-children-only": {
        "param_dtype": BF16,
        "reduce_dtype": FP32,
        "cast_forward_inputs": True,
        "cast_root_forward_inputs": False,
    },
}


def initialize(module: nn.Module) -> None:
    """A ``param_init_fn``: draws every tensor that the module holds itself."""
    module.to_empty(device="cpu", recurse=False)
    with torch.no_grad():
        for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            tensor.uniform_(-0.3, 0.3)


def empty(module: nn.Module) -> None:
    module.to_empty(device="cpu", recurse=False)


def without_buffers(model: nn.Module) -> None:
    """Buffers that no ``reset_parameters`` fills are made before, as programs have to."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = torch.zeros_like(buffer, device="cpu") + 0.25
        if module._buffers and not hasattr(module, "reset_parameters"):
            values = {n: b.clone() for n, b in module._buffers.items()}
            module.reset_parameters = partial(restore, module, values)


def restore(module: nn.Module, values: dict[str, torch.Tensor]) -> None:
    for name, value in values.items():
        module._buffers[name] = value.clone()


def wrap_by_hand(model: nn.Module, shard: Any, **options: Any) -> nn.Module:
    """Inner parts first, as programs without a policy do."""
    for index, block in enumerate(model.blocks):
        model.blocks[index] = shard(block, **options)
    return shard(model, **options)


BY_HAND: dict[str, Any] = {
    "ours": lambda model, **options: wrap_by_hand(model, FullyShardedDataParallel, **options),
    "theirs": lambda model, **options: wrap_by_hand(model, FSDP, **options),
}


def custom_with_precision(api: Any) -> dict[str, Any]:
    """Units that differ from the root in their types."""
    low = api.MixedPrecision(param_dtype=BF16, reduce_dtype=FP32, cast_forward_inputs=True)

    def decide(module: nn.Module) -> bool | dict[str, Any]:
        if isinstance(module, Attention):
            return {"mixed_precision": low, "sharding_strategy": api.ShardingStrategy.NO_SHARD}
        return {"mixed_precision": low} if isinstance(module, Block) else False

    return {
        "auto_wrap_policy": api.CustomPolicy(decide),
        "mixed_precision": api.MixedPrecision(param_dtype=BF16, buffer_dtype=BF16),
    }


def offloaded(api: Any) -> dict[str, Any]:
    return {
        "cpu_offload": api.CPUOffload(offload_params=True),
        "auto_wrap_policy": api.ModuleWrapPolicy({Block}),
    }


def per_node(api: Any) -> dict[str, Any]:
    """HYBRID_SHARD over the devices of a node, of which the CPU is made to have two."""
    torch.cpu.device_count = lambda: 2
    return strategy("HYBRID_SHARD")(api)


FLAT: dict[str, Any] = {}  # FSDP1's default: use_orig_params=False

COMPARISONS = [
    Case("default"),
    Case("default-flat", fsdp1=FLAT, ranks=(2,)),
    # strategies, groups and meshes
    Case("full-shard", strategy("FULL_SHARD")),
    Case("shard-grad-op", strategy("SHARD_GRAD_OP")),
    Case("no-shard", strategy("NO_SHARD")),
    Case("hybrid-named-mesh", hybrid("HYBRID_SHARD", "named-mesh"), ranks=(4,)),
    Case("hybrid-unnamed-mesh", hybrid("HYBRID_SHARD", "unnamed-mesh"), ranks=(4,)),
    Case("hybrid-zero2-groups", hybrid("_HYBRID_SHARD_ZERO2", "groups"), ranks=(4,)),
    Case("hybrid-per-node", per_node, ranks=(4,)),
    Case("half-group", halves("FULL_SHARD", "group"), ranks=(4,)),
    Case("half-mesh-no-shard", halves("NO_SHARD", "mesh"), ranks=(4,)),
    # policies
    *[Case(f"policy-{name}", policy(make), ranks=(2,)) for name, make in POLICIES.items()],
    Case("policy-custom-torch-options", policy(custom_with_dict), ranks=(2,), foreign_options=True),
    Case("policy-custom-precision", custom_with_precision, ranks=(2,)),
    Case("policy-size-based-stack", policy(POLICIES["size-based"]), Stack, ranks=(2,)),
    Case("by-hand", **BY_HAND),
    # mixed precision
    *[Case(f"mixed-{name}", mixed(**fields), ranks=(2,)) for name, fields in MIXED.items()],
    *[
        Case(f"mixed-{name}-batch-norm", mixed(**MIXED[name]), ConvNet, ranks=(2,))
        for name in ("bf16-reduce-fp32", "buffers", "buffers-unwrapped")
    ],
    # initialization
    Case("ignored-modules", policy(POLICIES["transformer"], ignored_modules=["blocks.0.mlp"])),
    Case("sync", policy(POLICIES["transformer"], sync_module_states=True), rank_seeds=True),
    Case(
        "sync-half-group",
        lambda api: {**halves("FULL_SHARD", "group")(api), "sync_module_states": True},
        rank_seeds=True,
        ranks=(4,),
    ),
    Case(
        "meta-param-init-fn", policy(POLICIES["module-wrap"], param_init_fn=initialize), meta="all"
    ),
    Case(
        "meta-reset-parameters",
        policy(POLICIES["module-wrap"]),
        meta="all",
        prepare=without_buffers,
    ),
    # accumulation
    *[
        Case(f"no-sync-{label}", strategy(name), micro_batches=3)
        for label, name in [
            ("full-shard", "FULL_SHARD"),
            ("shard-grad-op", "SHARD_GRAD_OP"),
            ("no-shard", "NO_SHARD"),
        ]
    ],
    Case("no-sync-hybrid", hybrid("HYBRID_SHARD", "named-mesh"), micro_batches=3, ranks=(4,)),
    # clipping
    Case("clip", strategy("FULL_SHARD"), clip=0.05, bitwise=False),
    Case("clip-not-reached", strategy("FULL_SHARD"), clip=1e6, ranks=(2,)),
    Case("clip-hybrid", hybrid("HYBRID_SHARD", "named-mesh"), clip=0.05, bitwise=False, ranks=(4,)),
    # Offloading changes no number. FSDP1's own goes wrong without a device to copy from.
    Case(
        "offload",
        offloaded,
        fsdp1={"use_orig_params": True, "cpu_offload": None},
        clip=0.05,
        bitwise=False,
        ranks=(2,),
    ),
    # prefetching
    Case("forward-prefetch", strategy("FULL_SHARD", forward_prefetch=True), ranks=(2,)),
    Case("backward-prefetch-none", strategy("FULL_SHARD", backward_prefetch=None), ranks=(2,)),
]


@contextlib.contextmanager
def always_sync(model: nn.Module) -> Iterator[None]:
    yield


def local_norm(model: nn.Module, max_norm: float, norm_type: float) -> torch.Tensor:
    gradients = [p.grad.to_local() for p in model.parameters() if p.grad is not None]
    total = torch.nn.utils.get_total_norm(gradients, norm_type)
    for gradient in gradients:
        gradient.mul_((max_norm / (total + 1e-6)).clamp(max=1.0))
    return total


def root_resharded(model: nn.Module, **options: Any) -> nn.Module:
    model = FullyShardedDataParallel(model, **options)
    model.set_reshard_after_forward(True)
    return model


def children_cast(model: nn.Module, **options: Any) -> nn.Module:
    policy = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=FP32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def initialized_root_first(model: nn.Module, **options: Any) -> nn.Module:
    for module in model.modules():
        initialize(module)
    return FullyShardedDataParallel(model, **options)


# Each fault stands in for one that a translation could make: what the bridge runs with, in place of
# what FSDP1 runs with, and what must be found different.
FAULTS: dict[str, tuple[Case, dict[str, Any], str]] = {
    "wrong-strategy": (
        Case("fault", strategy("FULL_SHARD")),
        {"options": strategy("SHARD_GRAD_OP")},
        "collectives",
    ),
    "root-resharded-after-forward": (
        Case("fault", strategy("FULL_SHARD")),
        {"ours": root_resharded},
        "collectives",
    ),
    "missing-units": (
        Case("fault", strategy("FULL_SHARD")),
        {"options": lambda api: {}},
        "collectives",
    ),
    "missing-broadcast": (
        Case("fault", strategy("FULL_SHARD", sync_module_states=True), rank_seeds=True),
        {"options": strategy("FULL_SHARD")},
        "losses",
    ),
    "buffers-not-cast": (
        Case("fault", mixed(**MIXED["buffers"])),
        {"options": mixed(**MIXED["bf16-reduce-fp32"])},
        "losses",
    ),
    "inputs-cast-in-every-unit": (
        Case(
            "fault",
            lambda api: {
                **strategy("FULL_SHARD")(api),
                "mixed_precision": api.MixedPrecision(param_dtype=BF16, reduce_dtype=FP32),
            },
        ),
        {"ours": children_cast},
        "dtypes",
    ),
    "nothing-ignored": (
        Case("fault", policy(POLICIES["transformer"], ignored_modules=["blocks.0.mlp"])),
        {"options": policy(POLICIES["transformer"])},
        "losses",
    ),
    "initialized-in-another-order": (
        Case("fault", policy(POLICIES["module-wrap"], param_init_fn=initialize), meta="all"),
        {"ours": initialized_root_first},
        "losses",
    ),
    "synced-every-time": (
        Case("fault", strategy("FULL_SHARD"), micro_batches=3),
        {"no_sync": always_sync},
        "collectives",
    ),
    "clipped-by-local-norm": (
        Case("fault", strategy("FULL_SHARD"), clip=0.05, bitwise=False),
        {"clip_grad_norm_": local_norm},
        "norms",
    ),
}
