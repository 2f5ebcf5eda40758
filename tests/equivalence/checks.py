"""What is checked without FSDP1 beside it. Each check runs on every rank and asserts for itself."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
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
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fsdp_migrate import runtime
from fsdp_migrate.runtime import FullyShardedDataParallel
from fsdp_migrate.runtime.gradients import is_unreduced

from .models import Block, ConvNet, Tied, Transformer

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


def cast_model() -> nn.Module:
    torch.manual_seed(0)
    precision = runtime.MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
    return FullyShardedDataParallel(Transformer(), mixed_precision=precision)


def forward(model: nn.Module) -> torch.Tensor:
    return model(*Transformer.batch(torch.Generator().manual_seed(3)))


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


def units(model: nn.Module) -> list[FSDPModule]:
    return [m for m in model.modules() if isinstance(m, FSDPModule)]


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


@check(2)
def local_shards_are_views_of_what_they_are_of() -> None:
    torch.manual_seed(0)
    model = fully_shard(nn.Linear(6, 5))
    weight = model.weight
    local = runtime.local_shard(weight.data)
    assert type(local) is torch.Tensor
    sizes = [0, 0]
    dist.all_gather_object(sizes, local.numel())
    assert sum(sizes) == weight.numel()
    local.fill_(3)
    assert (weight.full_tensor() == 3).all()
    tensor = torch.ones(2)
    assert runtime.local_shard(tensor) is tensor


@check(2)
def a_batch_norm_in_low_precision_is_refused() -> None:
    policy = MixedPrecisionPolicy(torch.bfloat16)

    def shard(net: ConvNet) -> None:
        with runtime.like_fsdp1(net):
            fully_shard(net.head, mp_policy=dataclasses.replace(policy, cast_forward_inputs=False))
            fully_shard(net, mp_policy=policy)

    with pytest.raises(ValueError, match="FSDP213"):
        shard(ConvNet())
