"""What is checked without FSDP1 beside it. Each check runs on every rank and asserts for itself."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fsdp_migrate import runtime
from fsdp_migrate.runtime import FullyShardedDataParallel
from fsdp_migrate.runtime.gradients import is_unreduced

from .models import Block, ConvNet, Tied, Transformer
from .train import TORCH, fsdp1_on_cpu

CHECKS: dict[str, tuple[tuple[int, ...], Callable[[], Any]]] = {}


def check(*ranks: int) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        CHECKS[function.__name__.replace("_", "-")] = (ranks, function)
        return function

    return register


class Tiny(nn.Module):
    """Row counts of 1, 2 and 3: some ranks get an empty shard."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)
        self.b = nn.Linear(3, 1)
        self.c = nn.Linear(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x)))


def same_on_all_ranks(tensor: torch.Tensor) -> bool:
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensor.contiguous())
    return all(torch.equal(gathered[0], other) for other in gathered)


def backward(model: nn.Module) -> list[torch.Tensor]:
    """Gives every rank its own batch; returns the whole gradients of the parameters."""
    torch.manual_seed(dist.get_rank())
    model(torch.randn(5, 4)).square().sum().backward()
    gradients = []
    for parameter in model.parameters():
        gradient = parameter.grad
        gradients.append(gradient.full_tensor() if isinstance(gradient, DTensor) else gradient)
    return [gradient.clone() for gradient in gradients]


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return Tiny()


def clip_matches_the_norm_of_whole_gradients(model: nn.Module) -> None:
    whole = backward(model)
    for norm_type in (1.0, 2.0, 3.0, math.inf):
        expected = torch.linalg.vector_norm(torch.cat([g.flatten() for g in whole]), norm_type)
        norm = runtime.clip_grad_norm_(model, 1e9, norm_type)
        assert type(norm) is torch.Tensor
        assert torch.allclose(norm, expected, rtol=1e-6), (norm_type, norm, expected)
        assert same_on_all_ranks(norm)
    norm = runtime.clip_grad_norm_(model.parameters(), 0.1, 2)
    clipped = [
        p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()
    ]
    for before, after in zip(whole, clipped, strict=True):
        assert torch.allclose(after, before * (0.1 / (norm + 1e-6)), rtol=1e-5, atol=1e-9)


@check(2, 4)
def clip_with_empty_shards() -> None:
    clip_matches_the_norm_of_whole_gradients(FullyShardedDataParallel(tiny()))


@check(2, 4)
def clip_over_two_meshes() -> None:
    model = tiny()
    policy = runtime.CustomPolicy(
        lambda m: {"sharding_strategy": "NO_SHARD"} if m is model.a else m is model.b
    )
    model = FullyShardedDataParallel(model, auto_wrap_policy=policy)
    meshes = {p.device_mesh for p in model.parameters()}
    assert len(meshes) == 2
    clip_matches_the_norm_of_whole_gradients(model)


@check(2)
def clip_with_synced_plain_parameters() -> None:
    model = tiny()
    model = FullyShardedDataParallel(model, ignored_modules=[model.c])
    backward(model)
    for parameter in model.c.parameters():
        assert not isinstance(parameter, DTensor)
        dist.all_reduce(parameter.grad)
    gradients = [
        p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()
    ]
    for norm_type in (2.0, math.inf):
        expected = torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients]), norm_type)
        assert torch.allclose(runtime.clip_grad_norm_(model, 1e9, norm_type), expected)


@check(2)
def clip_where_a_rank_has_no_gradients() -> None:
    model = FullyShardedDataParallel(tiny())
    backward(model)
    if dist.get_rank() == 1:
        for parameter in model.parameters():
            parameter.grad = None
    norm = runtime.clip_grad_norm_(model, 1.0)
    assert norm > 0
    assert same_on_all_ranks(norm)


@check(2)
def clip_after_an_evaluation() -> None:
    model = fully_shard(tiny())
    backward(model)
    expected = runtime.clip_grad_norm_(model, 1e9)
    with torch.no_grad():
        model(torch.randn(2, 4))
    assert torch.equal(runtime.clip_grad_norm_(model, 1e9), expected)


@check(2)
def clip_refuses_a_norm_that_is_not_finite() -> None:
    model = FullyShardedDataParallel(tiny())
    backward(model)
    if dist.get_rank() == 0:
        next(model.parameters()).grad.to_local()[0] = math.nan
    with pytest.raises(RuntimeError, match="non-finite"):
        runtime.clip_grad_norm_(model, 1.0, error_if_nonfinite=True)
    assert not runtime.clip_grad_norm_(model, 1.0).isfinite()


@check(2)
def no_sync_restores_after_an_error() -> None:
    model = FullyShardedDataParallel(tiny())
    with contextlib.suppress(KeyError), runtime.no_sync(model):
        backward_raises(model)
    backward(model)
    assert all(p.grad is not None for p in model.parameters())


def backward_raises(model: nn.Module) -> None:
    raise KeyError


@check(2)
def no_sync_nests() -> None:
    model = fully_shard(tiny(), reshard_after_forward=False)
    with runtime.no_sync(model):
        with runtime.no_sync(model):
            model(torch.randn(5, 4)).sum().backward()
        model(torch.randn(5, 4)).sum().backward()
        assert not any(isinstance(p, DTensor) for p in model.parameters())  # still gathered
        assert all(p.grad is not None for p in model.parameters())  # whole and unreduced
    model(torch.randn(5, 4)).sum().backward()
    assert all(isinstance(p.grad, DTensor) for p in model.parameters())


@check(2)
def no_sync_is_left_to_ddp() -> None:
    model = DistributedDataParallel(tiny())
    with runtime.no_sync(model):
        assert model.require_backward_grad_sync is False
    assert model.require_backward_grad_sync is True


@check(2)
def no_sync_reaches_units_of_a_plain_module() -> None:
    model = tiny()
    fully_shard(model.a)
    with runtime.no_sync(model):
        model(torch.randn(5, 4)).sum().backward()
    assert is_unreduced(model.a.weight.grad)
    model(torch.randn(5, 4)).sum().backward()
    assert not is_unreduced(model.a.weight.grad)


def leftovers(policy: MixedPrecisionPolicy, left: str) -> list[torch.Tensor]:
    """The gradients of one step after a micro-batch that was left over, or not."""
    model = fully_shard(tiny(), mp_policy=policy)
    if left != "nothing":
        with runtime.no_sync(model):
            model(torch.full((5, 4), 3.0)).float().sum().backward()
    if left == "cleared":
        model.zero_grad()
    model(torch.ones(5, 4)).float().sum().backward()
    return [p.grad.full_tensor().clone() for p in model.parameters()]


@check(2)
def left_over_gradients_are_discarded() -> None:
    low = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for policy in (MixedPrecisionPolicy(), low):
        clean = leftovers(policy, "nothing")
        assert all(map(torch.equal, clean, leftovers(policy, "cleared")))
        assert not all(map(torch.equal, clean, leftovers(policy, "kept")))


@check(2)
def all_states_are_broadcast() -> None:
    torch.manual_seed(dist.get_rank())
    model = Transformer()
    for buffer in model.buffers():
        buffer.add_(dist.get_rank())
    assert not same_on_all_ranks(model.head.weight.detach())
    runtime.broadcast_module_states(model, device="cpu")
    states = [*model.parameters(), *model.buffers()]
    assert all(same_on_all_ranks(state.detach()) for state in states)


def cast_model() -> nn.Module:
    torch.manual_seed(0)
    precision = runtime.MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
    return FullyShardedDataParallel(Transformer(), mixed_precision=precision)


def forward(model: nn.Module) -> torch.Tensor:
    return model(*Transformer.batch(torch.Generator().manual_seed(3)))


@check(2)
def cast_buffers_are_saved_in_their_own_dtype() -> None:
    model = cast_model()
    assert model.scale.dtype is torch.float32
    model.module.cos = model.cos + 0  # made anew after sharding, as models with lazy tables do
    forward(model)
    assert model.scale.dtype is model.cos.dtype is torch.bfloat16
    assert model.state_dict()["scale"].dtype is torch.float32
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    assert whole["scale"].dtype is torch.float32


@check(2)
def cast_buffers_are_loaded() -> None:
    for broadcast in (False, True):
        model = cast_model()
        forward(model)
        options = StateDictOptions(full_state_dict=True)
        state = get_model_state_dict(model, options=options)
        state = {name: torch.full_like(value, 0.5) for name, value in state.items()}
        options.broadcast_from_rank0 = broadcast
        set_model_state_dict(
            model, state if not broadcast or dist.get_rank() == 0 else {}, options=options
        )
        assert model.scale.dtype is torch.bfloat16
        assert model.scale.item() == 0.5
        assert all((p.full_tensor() == 0.5).all() for p in model.parameters())


@check(2)
def batch_norm_stays_in_full_precision() -> None:
    torch.manual_seed(0)
    model = FullyShardedDataParallel(
        ConvNet(),
        auto_wrap_policy=runtime.ModuleWrapPolicy({nn.Sequential}),
        mixed_precision=runtime.MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16),
    )
    seen = {}
    for name, module in model.module.named_modules():
        module.register_forward_hook(
            lambda m, args, output, name=name: (
                seen.update({name: (m.weight.dtype, output.dtype)})
                if "weight" in m._parameters
                else None
            )
        )
    model(*ConvNet.batch(torch.Generator().manual_seed(3)))
    seen = {n.removesuffix("._fsdp_wrapped_module"): dtypes for n, dtypes in seen.items()}
    assert seen["bn"] == (torch.float32, torch.bfloat16)
    assert seen["conv"] == (torch.bfloat16, torch.bfloat16)
    assert model.bn.running_mean.dtype is torch.float32
    assert model.mean.dtype is torch.bfloat16


@check(2)
def forward_prefetch_follows_the_first_forward() -> None:
    torch.manual_seed(0)
    policy = runtime.ModuleWrapPolicy({Block})
    model = FullyShardedDataParallel(Transformer(), auto_wrap_policy=policy, forward_prefetch=True)
    prefetched = [m._get_fsdp_state()._states_to_forward_prefetch for m in units(model)]
    assert prefetched == [[], [], []]
    forward(model)
    root, first, second = (m._get_fsdp_state() for m in units(model))
    assert root._states_to_forward_prefetch == [first]
    assert first._states_to_forward_prefetch == [second]
    assert second._states_to_forward_prefetch == []


def units(model: nn.Module) -> list[FSDPModule]:
    return [m for m in model.modules() if isinstance(m, FSDPModule)]


@check(2)
def backward_prefetch_none_prefetches_nothing() -> None:
    torch.manual_seed(0)
    policy = runtime.ModuleWrapPolicy({Block})
    model = FullyShardedDataParallel(Transformer(), auto_wrap_policy=policy, backward_prefetch=None)
    for unit in units(model):
        state = unit._get_fsdp_state()
        assert state._states_to_backward_prefetch == [state]


@check(4)
def hybrid_over_one_shard_synchronizes() -> None:
    """Where FSDP1 falls back to no communication at all (pytorch#154888)."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (4, 1), mesh_dim_names=("replicate", "shard"))
    model = FullyShardedDataParallel(tiny(), sharding_strategy="HYBRID_SHARD", device_mesh=mesh)
    assert all(map(same_on_all_ranks, backward(model)))


@check(2)
def tied_parameters_stay_tied_from_meta() -> None:
    with torch.device("meta") if dist.get_rank() else contextlib.nullcontext():
        model = Tied()
    expected = copy.deepcopy(model.embed.weight) if dist.get_rank() == 0 else None
    empty = lambda module: module.to_empty(device="cpu", recurse=False)  # noqa: E731
    model = FullyShardedDataParallel(model, sync_module_states=True, param_init_fn=empty)
    assert model.head.weight is model.embed.weight
    whole = model.head.weight.full_tensor()
    assert same_on_all_ranks(whole.detach())
    assert expected is None or torch.equal(whole, expected)


@check(2)
def materializing_draws_as_fsdp1_and_holds_one_unit() -> None:
    whole: list[int] = []

    def initialize(module: nn.Module) -> None:
        module.to_empty(device="cpu", recurse=False)
        for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            nn.init.uniform_(tensor)
        held = (p for p in model.parameters() if not p.is_meta and not isinstance(p, DTensor))
        whole.append(sum(p.numel() for p in held))

    after = []
    for plain in (False, True):
        torch.manual_seed(7)
        with torch.device("meta"):
            model: nn.Module = Transformer()
        sizes = [
            sum(p.numel() for p in m.parameters()) for m in model.modules() if type(m) is Block
        ]
        rest = sum(p.numel() for p in model.parameters()) - sum(sizes)
        whole.clear()
        if plain:
            for module in [*(m for m in model.modules() if isinstance(m, Block)), model]:
                runtime.materialize(module, initialize)
                fully_shard(module)
            assert max(whole) == max(*sizes, rest) < sum(sizes) + rest
        else:
            with fsdp1_on_cpu():
                policy = ModuleWrapPolicy({Block})
                FSDP(model, auto_wrap_policy=policy, param_init_fn=initialize)
        after.append(torch.rand(8))  # as of dropout
    assert torch.equal(*after)


@check(2)
def broadcast_gives_every_rank_the_first_ones_states() -> None:
    torch.manual_seed(dist.get_rank())
    model = Transformer()
    model.cos.fill_(dist.get_rank())
    model.norm.weight.data = torch.full((18,), float(dist.get_rank()))
    fully_shard(model.norm)  # a unit below keeps what it has
    runtime.broadcast_module_states(model)
    kept = model.norm.weight.full_tensor()
    assert kept.tolist() == [rank for rank in range(2) for _ in range(9)]
    assert (model.cos == 0).all()
    others = (p for p in model.parameters() if not isinstance(p, DTensor))
    assert all(same_on_all_ranks(p.detach()) for p in others)


@check(2)
def broadcast_refuses_meta_tensors() -> None:
    with torch.device("meta"):
        model = Tiny()
    with pytest.raises(ValueError, match="meta device"):
        runtime.broadcast_module_states(model)


@check(2)
def strided_parameters_are_made_contiguous() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3)).to(memory_format=torch.channels_last)
    expected = model[0].weight.detach().clone()
    model = FullyShardedDataParallel(model)
    assert torch.equal(model[0].weight.full_tensor(), expected)
    model(torch.randn(1, 3, 5, 5)).sum().backward()


@check(2)
def parts_sharded_before_are_left_alone() -> None:
    torch.manual_seed(0)
    model = Transformer()
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    fully_shard(model.blocks[0], mesh=mesh, reshard_after_forward=False)
    model = FullyShardedDataParallel(model)
    assert model.blocks[0].mlp[0].weight.device_mesh == mesh
    forward(model).sum().backward()


def grouped(model: nn.Module) -> torch.optim.Optimizer:
    """Weight decay for matrices only, by shapes that FSDP1's shards no longer have."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    return torch.optim.AdamW([{"params": matrices}, {"params": rest, "weight_decay": 0}], lr=0.01)


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The losses of some steps under a schedule."""
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(*Tied.batch(generator)).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    return losses


def under_fsdp1(use_orig_params: bool) -> list[torch.Tensor]:
    """An optimizer that is older than the sharding."""
    torch.manual_seed(0)
    model = Tied()
    optimizer = grouped(model)
    with fsdp1_on_cpu():
        policy = TORCH.ModuleWrapPolicy({Block})
        sharded = TORCH.FullyShardedDataParallel(
            model,
            auto_wrap_policy=policy,
            device_id=torch.device("cpu"),
            use_orig_params=use_orig_params,
        )
        losses = trained(sharded, optimizer)
    del sharded
    return losses


def on_the_bridge(use_orig_params: bool) -> list[torch.Tensor]:
    """Likewise."""
    torch.manual_seed(0)
    model = Tied()
    optimizer = grouped(model)
    policy = runtime.ModuleWrapPolicy({Block})
    sharded = FullyShardedDataParallel(
        model, auto_wrap_policy=policy, use_orig_params=use_orig_params
    )
    return trained(sharded, optimizer)


@check(2)
def an_optimizer_built_first_trains_as_under_fsdp1() -> None:
    theirs = under_fsdp1(use_orig_params=True)
    assert all(map(torch.equal, theirs, on_the_bridge(use_orig_params=True)))


@check(2)
def an_optimizer_built_first_trained_nothing_under_flat_fsdp1() -> None:
    theirs = under_fsdp1(use_orig_params=False)
    assert all(map(torch.equal, theirs, on_the_bridge(use_orig_params=False)))


@check(2)
def a_tie_between_units_is_refused() -> None:
    for classes in ({nn.Embedding}, {nn.Linear}):
        model = Tied()
        policy = runtime.ModuleWrapPolicy(classes)
        with pytest.raises(ValueError, match="one parameter in two units"):
            FullyShardedDataParallel(model, auto_wrap_policy=policy)
        assert not units(model)


@check(2)
def compiling_first_or_last_trains_the_same() -> None:
    losses = []
    for when in ("never", "first", "last"):
        torch.manual_seed(0)
        model: nn.Module = Transformer()
        if when == "first":
            model = torch.compile(model, backend="eager")
        model = FullyShardedDataParallel(model, auto_wrap_policy=runtime.ModuleWrapPolicy({Block}))
        assert len(units(model)) == 3
        if when == "last":
            model = torch.compile(model, backend="eager")
        losses.append(trained(model, grouped(model)))
    assert all(all(map(torch.equal, losses[0], other)) for other in losses[1:])
