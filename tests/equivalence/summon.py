"""summon_full_params beside FSDP1's: what is seen inside, and what is left of changes made there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor import DTensor

from fsdp_migrate import runtime

from .checks import check
from .models import Block, Tied, Transformer
from .train import TORCH, clean, fsdp1_on_cpu, full_fsdp1, full_fsdp2

Summon = Callable[..., Any]
Seen = dict[str, Any]


def build(make: Callable[..., nn.Module], api: Any, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    options = {k: v(api) if callable(v) else v for k, v in options.items()}
    return make(options.pop("model", Transformer)(), **options)


def theirs(**options: Any) -> nn.Module:
    return build(FSDP, TORCH, device_id=torch.device("cpu"), use_orig_params=True, **options)


def ours(**options: Any) -> nn.Module:
    return build(runtime.FullyShardedDataParallel, runtime, use_orig_params=True, **options)


def step(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(dist.get_rank())
    model(*Transformer.batch(generator)).float().square().mean().backward()


def change(model: nn.Module, summon: Summon, options: dict[str, Any]) -> Seen:
    """What is seen inside, while everything that is whole is changed."""
    seen: Seen = {}
    with summon(model, **options), torch.no_grad():
        for name, parameter in model.named_parameters():
            name = clean(name)
            if not is_summoned(name, options):
                continue
            assert is_whole(name, parameter)
            gradient = parameter.grad.clone() if options.get("with_grads") else None
            seen[name] = parameter.detach().clone(), parameter.requires_grad, gradient
            parameter.mul_(2)
            if gradient is not None:
                parameter.grad.add_(1)
    return seen


def is_summoned(name: str, options: dict[str, Any]) -> bool:
    if options.get("rank0_only") and dist.get_rank() != 0:
        return False
    return options.get("recurse", True) or not name.startswith("blocks.")


SHAPES = {name: parameter.shape for name, parameter in Transformer().named_parameters()}


def is_whole(name: str, parameter: torch.Tensor) -> bool:
    return parameter.shape == SHAPES[name] and not isinstance(parameter, DTensor)


def compare(options: dict[str, Any], **build_options: Any) -> None:
    with fsdp1_on_cpu():
        model = theirs(**build_options)
        step(model)
        expected = change(model, FSDP.summon_full_params, options)
        expected_after = full_fsdp1(model)[0]
        expected_grads = grads(model, FSDP.summon_full_params)
    model = ours(**build_options)
    step(model)
    found = change(model, runtime.summon_full_params, options)
    same(expected, found)
    same(expected_after, full_fsdp2(model)[0])
    same(expected_grads, grads(model, runtime.summon_full_params))


def grads(model: nn.Module, summon: Summon) -> Seen:
    with summon(model, with_grads=True):
        return {clean(n): p.grad.clone() for n, p in model.named_parameters()}


def same(expected: Any, found: Any) -> None:
    """Equal to the last bit; says where not."""
    if isinstance(expected, dict):
        assert expected.keys() == found.keys()
        for name in expected:
            try:
                same(expected[name], found[name])
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None
    elif isinstance(expected, tuple):
        assert len(expected) == len(found), (expected, found)
        for one, other in zip(expected, found, strict=True):
            same(one, other)
    elif isinstance(expected, torch.Tensor):
        assert expected.dtype == found.dtype
        assert torch.equal(expected, found), (expected - found).abs().max()
    else:
        assert expected == found, (expected, found)


def blocks(api: Any) -> Any:
    return api.ModuleWrapPolicy({Block})


def member(name: str) -> Any:
    return lambda api: api.ShardingStrategy[name]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"writeback": False},
    {"recurse": False},
    {"recurse": False, "writeback": False},
    {"writeback": False, "rank0_only": True},
    {"with_grads": True},
    {"with_grads": True, "writeback": False},
    {"with_grads": True, "recurse": False},
    {"with_grads": True, "writeback": False, "rank0_only": True},
]


@check(2)
def summon_sees_and_keeps_what_fsdp1_does() -> None:
    for options in OPTIONS:
        compare(options, auto_wrap_policy=blocks)


@check(2)
def summon_with_other_strategies_and_precision() -> None:
    for strategy in ("SHARD_GRAD_OP", "NO_SHARD"):
        for options in ({}, {"writeback": False}):
            compare(options, auto_wrap_policy=blocks, sharding_strategy=member(strategy))
    compare(
        {},
        auto_wrap_policy=blocks,
        mixed_precision=lambda api: api.MixedPrecision(torch.bfloat16, torch.float32),
    )


@check(2)
def summon_offloads_to_the_cpu() -> None:
    # FSDP1 cannot on a machine whose device is the CPU.
    model = ours(auto_wrap_policy=blocks)
    with runtime.summon_full_params(model, writeback=False, rank0_only=True, offload_to_cpu=True):
        for name, parameter in model.named_parameters():
            assert is_whole(clean(name), parameter) == (dist.get_rank() == 0)
            assert parameter.device.type == "cpu"


@check(2)
def summon_keeps_ties() -> None:
    torch.manual_seed(0)
    model = runtime.FullyShardedDataParallel(Tied())
    with runtime.summon_full_params(model), torch.no_grad():
        assert model.head.weight is model.embed.weight
        model.head.weight.fill_(3)
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.embed.weight.full_tensor(), torch.full((37, 18), 3.0))


@check(2)
def training_goes_on_after_a_forward_inside() -> None:
    model, other = ours(auto_wrap_policy=blocks), ours(auto_wrap_policy=blocks)
    batch = Transformer.batch(torch.Generator().manual_seed(0))
    with runtime.summon_full_params(model, recurse=False, writeback=False), torch.no_grad():
        inside = model(*batch)
    assert torch.equal(inside, other(*batch))
    other.zero_grad()
    for _ in range(2):
        for one in (model, other):
            step(one)
            with torch.no_grad():
                for parameter in one.parameters():
                    parameter.sub_(parameter.grad)
                    parameter.grad = None
    same(full_fsdp2(other)[0], full_fsdp2(model)[0])


@check(2)
def summon_restores_after_an_error_and_refuses_what_fsdp1_refuses() -> None:
    model = ours(auto_wrap_policy=blocks)
    sharded = list(model.parameters())
    with pytest.raises(KeyError), runtime.summon_full_params(model):
        raise KeyError
    assert all(a is b for a, b in zip(sharded, model.parameters(), strict=True))
    with (
        pytest.raises(NotImplementedError, match="rank0_only"),
        runtime.summon_full_params(model, rank0_only=True),
    ):
        pass
    with (
        pytest.raises(NotImplementedError, match="with_grads"),
        runtime.summon_full_params(model, with_grads=True, offload_to_cpu=True),
    ):
        pass
    plain = Transformer()
    with runtime.summon_full_params(plain):
        assert {n: p.shape for n, p in plain.named_parameters()} == SHAPES


def draw(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.xavier_normal_(module.weight)


@check(2)
def a_function_is_applied_to_whole_parameters() -> None:
    with fsdp1_on_cpu():
        model = theirs(auto_wrap_policy=blocks)
        torch.manual_seed(1)
        model.apply(draw)
        expected = full_fsdp1(model)[0]
    model = ours(auto_wrap_policy=blocks)
    torch.manual_seed(1)
    model.apply(draw)
    same(expected, full_fsdp2(model)[0])
