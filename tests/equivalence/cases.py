"""What is compared. A case is one way to call FSDP1's constructor and the training that follows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from fsdp_migrate import runtime
from fsdp_migrate.runtime import FullyShardedDataParallel, broadcast_module_states

from .models import Attention, Block, ConvNet, Stack, Tied
from .train import BRIDGE, TORCH, Case, averaging


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


def lambda_policy(api: Any) -> Any:
    return partial(api.lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, nn.Linear))


POLICIES = {
    "none": lambda api: None,
    "module-wrap": lambda api: api.ModuleWrapPolicy([Block, Attention]),
    "transformer": lambda api: partial(
        api.transformer_auto_wrap_policy, transformer_layer_cls={Block}
    ),
    "size-based": lambda api: partial(api.size_based_auto_wrap_policy, min_num_params=1000),
    "size-based-leaf": lambda api: partial(
        api.size_based_auto_wrap_policy, min_num_params=500, force_leaf_modules={Block}
    ),
    "module-function": lambda api: partial(api._module_wrap_policy, module_classes={Block}),
    "lambda": lambda_policy,
    "custom": lambda api: api.CustomPolicy(lambda m: isinstance(m, (Block, nn.LayerNorm))),
    "custom-dict": custom_with_dict,
    "or": lambda api: partial(
        api._or_policy,
        policies=[
            lambda_policy(api),
            partial(api.transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        ],
    ),
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
    "nothing": {},
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


def freeze_embedding(model: nn.Module) -> None:
    model.embed.weight.requires_grad_(False)


def wrap_by_hand(model: nn.Module, shard: Any, **options: Any) -> nn.Module:
    """Inner parts first, as programs without a policy do."""
    for index, block in enumerate(model.blocks):
        model.blocks[index] = shard(block, **options)
    return shard(model, **options)


BY_HAND: dict[str, Any] = {
    "ours": lambda model, **options: wrap_by_hand(model, FullyShardedDataParallel, **options),
    "theirs": lambda model, **options: wrap_by_hand(model, FSDP, **options),
}


def broadcast_first(model: nn.Module, **options: Any) -> nn.Module:
    """What the codemods write for ``sync_module_states=True`` where all is known."""
    broadcast_module_states(model, device=torch.device("cpu"))
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module)
    return averaging(fully_shard(model))


def parts_apart(shard: Any, api: Any) -> Any:
    """Each part with arguments of its own, as programs that wrap by hand may have them."""
    low = {"param_dtype": BF16}

    def wrap(model: nn.Module, **options: Any) -> nn.Module:
        first, second = model.blocks
        model.blocks[0] = shard(
            first,
            sharding_strategy=api.ShardingStrategy.SHARD_GRAD_OP,
            backward_prefetch=None,
            mixed_precision=api.MixedPrecision(**low, cast_forward_inputs=True),
            **options,
        )
        model.blocks[1] = shard(
            second,
            mixed_precision=api.MixedPrecision(**low, reduce_dtype=FP32),
            **options,
        )
        return shard(model, mixed_precision=api.MixedPrecision(**low, buffer_dtype=BF16), **options)

    return wrap


PARTS_APART: dict[str, Any] = {
    "ours": parts_apart(FullyShardedDataParallel, runtime),
    "theirs": parts_apart(FSDP, fsdp),
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


def transpose(model: nn.Module) -> None:
    """A parameter that is not contiguous."""
    weight = model.head.weight
    weight.data = weight.data.t().contiguous().t()
    assert not weight.is_contiguous()


def wrap_annotated(model: nn.Module, api: Any, shard: Any, **options: Any) -> nn.Module:
    """Blocks and the model by `wrap`, once or twice, in `enable_wrap`."""
    with api.enable_wrap(wrapper_cls=shard, **options):
        for index, block in enumerate(model.blocks):
            block.attn = api.wrap(block.attn, sharding_strategy=api.ShardingStrategy.SHARD_GRAD_OP)
            model.blocks[index] = api.wrap(api.wrap(block))
        return api.wrap(model)


ANNOTATED: dict[str, Any] = {
    "ours": lambda model, **options: wrap_annotated(
        model, BRIDGE, FullyShardedDataParallel, **options
    ),
    "theirs": lambda model, **options: wrap_annotated(model, TORCH, FSDP, **options),
}


def wrap_containers(model: nn.Module, shard: Any, inner: Any, **options: Any) -> nn.Module:
    """A container whose parts are units already, or become so by a policy."""
    model.blocks = shard(model.blocks, **{**options, "auto_wrap_policy": inner})
    return shard(model, **options)


def containers(api: Any, shard: Any, by_policy: bool) -> Any:
    def wrapped(model: nn.Module, **options: Any) -> nn.Module:
        if by_policy:
            return wrap_containers(model, shard, api.ModuleWrapPolicy({Block}), **options)
        for index, block in enumerate(model.blocks):
            model.blocks[index] = shard(block, **options)
        return wrap_containers(model, shard, None, **options)

    return wrapped


def in_container(by_policy: bool) -> dict[str, Any]:
    return {
        "ours": containers(runtime, FullyShardedDataParallel, by_policy),
        "theirs": containers(TORCH, FSDP, by_policy),
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
    # strategies
    Case("full-shard", strategy("FULL_SHARD")),
    Case("shard-grad-op", strategy("SHARD_GRAD_OP")),
    Case("no-shard", strategy("NO_SHARD")),
    Case("full-shard-flat", strategy("FULL_SHARD"), fsdp1=FLAT, ranks=(2,)),
    Case(
        "shard-grad-op-torch-options", strategy("SHARD_GRAD_OP"), foreign_options=True, ranks=(2,)
    ),
    *[
        Case(f"{label}-{how}", hybrid(name, how), ranks=(4,))
        for label, name in [("hybrid", "HYBRID_SHARD"), ("hybrid-zero2", "_HYBRID_SHARD_ZERO2")]
        for how in ("named-mesh", "unnamed-mesh", "groups")
    ],
    Case("hybrid-per-node", per_node, ranks=(4,)),
    # meshes and groups
    Case("world-group", lambda api: {"process_group": dist.group.WORLD}, ranks=(2,)),
    Case("group", lambda api: {"process_group": dist.new_group()}, ranks=(2,)),
    Case("mesh", lambda api: {"device_mesh": init_device_mesh("cpu", (2,))}, ranks=(2,)),
    Case("half-group", halves("FULL_SHARD", "group"), ranks=(4,)),
    Case("half-mesh", halves("SHARD_GRAD_OP", "mesh"), ranks=(4,)),
    Case("half-group-no-shard", halves("NO_SHARD", "group"), ranks=(4,)),
    Case("half-mesh-no-shard", halves("NO_SHARD", "mesh"), ranks=(4,)),
    # policies
    *[Case(f"policy-{name}", policy(make), ranks=(2,)) for name, make in POLICIES.items()],
    Case(
        "policy-transformer-torch-options",
        policy(POLICIES["transformer"]),
        ranks=(2,),
        foreign_options=True,
    ),
    Case("policy-custom-torch-options", policy(custom_with_dict), ranks=(2,), foreign_options=True),
    Case("policy-size-based-stack", policy(POLICIES["size-based-leaf"]), Stack, ranks=(2,)),
    Case("by-hand", **BY_HAND),
    Case(
        "by-hand-mixed-precision",
        mixed(param_dtype=BF16, reduce_dtype=FP32, wrapped=False),
        ranks=(2,),
        **BY_HAND,
    ),
    Case("by-hand-parts-apart", ranks=(2,), **PARTS_APART),
    Case("policy-custom-precision", custom_with_precision, ranks=(2,)),
    # FSDP1 keeps the strides, FSDP2 makes it contiguous: another kernel, which rounds otherwise
    Case(
        "not-contiguous",
        policy(POLICIES["transformer"]),
        prepare=transpose,
        ranks=(2,),
        bitwise=False,
    ),
    Case("annotated", ranks=(2,), **ANNOTATED),
    Case(
        "annotated-mixed-precision",
        mixed(param_dtype=BF16, reduce_dtype=FP32, wrapped=False),
        ranks=(2,),
        **ANNOTATED,
    ),
    *[
        Case(f"container-{label}{suffix}", options, ranks=(2,), **in_container(by_policy))
        for label, by_policy in [("by-hand", False), ("policy", True)]
        for suffix, options in [
            ("", lambda api: {}),
            ("-mixed", mixed(**MIXED["buffers"], wrapped=False)),
        ]
    ],
    # mixed precision
    *[Case(f"mixed-{name}", mixed(**fields), ranks=(2,)) for name, fields in MIXED.items()],
    *[
        Case(f"mixed-{name}-batch-norm", mixed(**MIXED[name]), ConvNet, ranks=(2,))
        for name in ("bf16", "bf16-reduce-fp32", "buffers", "buffers-unwrapped", "nothing")
    ],
    Case("mixed-bf16-reduce-fp32-four", mixed(**MIXED["bf16-reduce-fp32"]), ranks=(4,)),
    Case(
        "mixed-ignored-batch-norm",
        lambda api: {
            **mixed(**MIXED["buffers"])(api),
            "ignored_modules": ["bn"],
        },
        ConvNet,
        ranks=(2,),
    ),
    # ignored
    Case("ignored-modules", policy(POLICIES["transformer"], ignored_modules=["blocks.0.mlp"])),
    Case(
        "ignored-states-modules",
        policy(POLICIES["size-based"], ignored_states=["blocks.1"]),
        ranks=(2,),
    ),
    Case(
        "ignored-states-parameters",
        policy(POLICIES["transformer"], ignored_states=["head.weight", "blocks.0.norm.bias"]),
        ranks=(2,),
    ),
    Case("frozen", policy(POLICIES["transformer"]), prepare=freeze_embedding, ranks=(2,)),
    Case("tied", policy(POLICIES["transformer"]), Tied),
    # initialization
    Case("sync", policy(POLICIES["transformer"], sync_module_states=True), rank_seeds=True),
    Case(
        "sync-plain",
        policy(POLICIES["transformer"], sync_module_states=True),
        rank_seeds=True,
        ours=broadcast_first,
    ),
    Case(
        "sync-batch-norm",
        policy(POLICIES["lambda"], sync_module_states=True),
        ConvNet,
        rank_seeds=True,
    ),
    Case(
        "sync-no-shard",
        strategy("NO_SHARD", sync_module_states=True),
        rank_seeds=True,
        ranks=(2,),
    ),
    Case(
        "sync-hybrid",
        lambda api: {**hybrid("HYBRID_SHARD", "named-mesh")(api), "sync_module_states": True},
        rank_seeds=True,
        ranks=(4,),
    ),
    Case(
        "sync-half-group",
        lambda api: {**halves("FULL_SHARD", "group")(api), "sync_module_states": True},
        rank_seeds=True,
        ranks=(4,),
    ),
    Case(
        "sync-from-rank-0",
        policy(POLICIES["transformer"], sync_module_states=True, param_init_fn=empty),
        rank_seeds=True,
        meta="others",
    ),
    Case(
        "meta-param-init-fn",
        policy(POLICIES["module-wrap"], param_init_fn=initialize),
        meta="all",
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
    Case(
        "no-sync-hybrid-zero2", hybrid("_HYBRID_SHARD_ZERO2", "groups"), micro_batches=3, ranks=(4,)
    ),
    Case("no-sync-hybrid", hybrid("HYBRID_SHARD", "named-mesh"), micro_batches=3, ranks=(4,)),
    Case("no-sync-bf16", mixed(**MIXED["bf16"]), micro_batches=3, ranks=(2,)),
    # clipping
    *[
        Case(f"clip-{label}", strategy("FULL_SHARD"), clip=0.05, norm_type=norm, bitwise=False)
        for label, norm in [("l2", 2.0), ("l1", 1.0), ("inf", float("inf"))]
    ],
    Case("clip-not-reached", strategy("FULL_SHARD"), clip=1e6, ranks=(2,)),
    Case("clip-no-shard", strategy("NO_SHARD"), clip=0.05, bitwise=False),
    Case("clip-hybrid", hybrid("HYBRID_SHARD", "named-mesh"), clip=0.05, bitwise=False, ranks=(4,)),
    Case(
        "clip-inf-ignored",
        policy(POLICIES["transformer"], ignored_modules=["blocks.0.mlp"]),
        clip=0.01,
        norm_type=float("inf"),
        bitwise=False,
        ranks=(2,),
    ),
    # Offloading changes no number. FSDP1's own goes wrong without a device to copy from.
    Case("offload", offloaded, fsdp1={"use_orig_params": True, "cpu_offload": None}, ranks=(2,)),
    Case(
        "offload-meta",
        lambda api: {**offloaded(api), "param_init_fn": initialize},
        fsdp1={"use_orig_params": True, "cpu_offload": None},
        meta="all",
        ranks=(2,),
    ),
    *[
        Case(
            f"clip-{label}-offload",
            offloaded,
            fsdp1={"use_orig_params": True, "cpu_offload": None},
            clip=0.05,
            norm_type=norm,
            bitwise=False,
            ranks=(2,),
        )
        for label, norm in [("l2", 2.0), ("l1", 1.0), ("inf", float("inf"))]
    ],
    # prefetching
    Case("forward-prefetch", strategy("FULL_SHARD", forward_prefetch=True), ranks=(2,)),
    Case("backward-prefetch-none", strategy("FULL_SHARD", backward_prefetch=None), ranks=(2,)),
    Case(
        "backward-prefetch-post",
        lambda api: strategy("FULL_SHARD", backward_prefetch=api.BackwardPrefetch.BACKWARD_POST)(
            api
        ),
        ranks=(2,),
    ),
    Case("limit-all-gathers-off", strategy("FULL_SHARD", limit_all_gathers=False), ranks=(2,)),
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
        Case(
            "fault",
            policy(POLICIES["module-wrap"], param_init_fn=initialize),
            meta="all",
        ),
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
